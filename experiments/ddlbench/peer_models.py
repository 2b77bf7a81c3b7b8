"""The models of this experiment in PyTorch, as lists of layers that a pipeline can be cut between: of small images as DDLBench has them, of large ones as torchvision's."""
import torch
from torch import nn

RESNETS = {"resnet18": (False, (2, 2, 2, 2)), "resnet34": (False, (3, 4, 6, 3)), "resnet50": (True, (3, 4, 6, 3)), "resnet101": (True, (3, 4, 23, 3)), "resnet152": (True, (3, 8, 36, 3))}
VGGS = {"vgg11": (1, 1, 2, 2, 2), "vgg13": (2, 2, 2, 2, 2), "vgg16": (2, 2, 3, 3, 3), "vgg19": (2, 2, 4, 4, 4)}
# Of MobileNetV2: expansion, channels, blocks, stride of the first.
INVERTED = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def options_of(spec):
    """name, options: of resnet18:small=yes,image=28."""
    name, _, rest = spec.partition(":")
    return name, dict(word.split("=", 1) for word in rest.split(",") if word)


def convolution(inputs, outputs, kernel, stride=1, groups=1, activation=nn.ReLU):
    """With batch norm, as ResNet and MobileNet have it."""
    layers = [nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False), nn.BatchNorm2d(outputs)]
    return layers + ([activation()] if activation else [])


class Block(nn.Module):
    """`path` + shortcut, and an activation."""

    def __init__(self, path, shortcut, activation):
        super().__init__()
        self.path, self.shortcut, self.activation = nn.Sequential(*path), shortcut, activation

    def forward(self, x):
        return self.activation(self.path(x) + self.shortcut(x))


def resnet(name, small, channels, classes):
    bottleneck, counts = RESNETS[name]
    layers = [nn.Sequential(*convolution(channels, 64, 3))] if small else [nn.Sequential(*convolution(channels, 64, 7, 2), nn.MaxPool2d(3, 2, 1))]
    inputs = 64
    for group, count in enumerate(counts):
        width, outputs = 64 << group, (256 if bottleneck else 64) << group
        for block in range(count):
            stride = 2 if group > 0 and block == 0 else 1
            path = ([*convolution(inputs, width, 1), *convolution(width, width, 3, stride), *convolution(width, outputs, 1, activation=None)] if bottleneck
                    else [*convolution(inputs, width, 3, stride), *convolution(width, outputs, 3, activation=None)])
            same = stride == 1 and inputs == outputs
            layers.append(Block(path, nn.Identity() if same else nn.Sequential(*convolution(inputs, outputs, 1, stride, activation=None)), nn.ReLU()))
            inputs = outputs
    return layers + [nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))]


def vgg(name, small, image, channels, classes):
    layers, inputs = [], channels
    for group, count in enumerate(VGGS[name]):
        for _ in range(count):
            outputs = min(64 << group, 512)
            layers.append(nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()))
            inputs = outputs
        if image >> (group + 1) >= 1:
            layers[-1].append(nn.MaxPool2d(2))
    if small:
        return layers + [nn.Sequential(nn.Flatten(), nn.Linear(512, classes))]
    return layers + [nn.Sequential(nn.AdaptiveAvgPool2d(7), nn.Flatten(), nn.Linear(512 * 49, 4096), nn.ReLU(), nn.Dropout()),
                     nn.Sequential(nn.Linear(4096, 4096), nn.ReLU(), nn.Dropout()), nn.Linear(4096, classes)]


def mobilenet(small, channels, classes):
    activation = nn.ReLU if small else nn.ReLU6
    layers, inputs = [nn.Sequential(*convolution(channels, 32, 3, 1 if small else 2, activation=activation))], 32
    for expansion, outputs, count, first_stride in INVERTED:
        for block in range(count):
            stride = first_stride if block == 0 and not (small and outputs == 24) else 1
            width = inputs * expansion
            path = convolution(inputs, width, 1, activation=activation) if small or expansion > 1 else []
            path += [*convolution(width, width, 3, stride, width, activation), *convolution(width, outputs, 1, activation=None)]
            if stride == 1 and inputs == outputs:
                layers.append(Block(path, nn.Identity(), nn.Identity()))
            elif stride == 1 and small:
                layers.append(Block(path, nn.Sequential(*convolution(inputs, outputs, 1, activation=None)), nn.Identity()))
            else:
                layers.append(nn.Sequential(*path))
            inputs = outputs
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), *([] if small else [nn.Dropout(0.2)]), nn.Linear(1280, classes)]
    return layers + [nn.Sequential(*convolution(inputs, 1280, 1, activation=activation)), nn.Sequential(*head)]


def form_of(spec):
    """The model's name, whether it is the small form, channels and pixels of a side of an image, classes."""
    name, options = options_of(spec)
    small = options.get("small") == "yes"
    return name, small, int(options.get("channels", 3)), int(options.get("image", 32 if small else 224)), 10 if small else 1000


def layers_of(spec):
    """Layers, the shape of one image, and classes."""
    name, small, channels, image, classes = form_of(spec)
    torch.manual_seed(1)
    if name in RESNETS:
        layers = resnet(name, small, channels, classes)
    elif name in VGGS:
        layers = vgg(name, small, image, channels, classes)
    else:
        layers = mobilenet(small, channels, classes)
    return layers, (channels, image, image), classes


def parameters(layers):
    return sum(parameter.numel() for layer in layers for parameter in layer.parameters())
