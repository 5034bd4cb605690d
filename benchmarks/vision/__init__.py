"""Evidence on images: DeiT-Ti on CIFAR-100 (the paper, 5.1)."""
