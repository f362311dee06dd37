"""A text corpus on disk that is opened in no time and searched by the end of a text."""
