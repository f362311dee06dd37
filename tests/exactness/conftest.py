import torch

torch.set_num_threads(1)  # the ring is thousands of tiny tensors: more threads only wait for each other
