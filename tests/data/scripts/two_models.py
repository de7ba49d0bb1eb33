"""A generator and a discriminator, each with its optimizer, fed by a loader in this process."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
generator = nn.Sequential(
    nn.Linear(64, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 1024), nn.Tanh()
).to(device)
discriminator = nn.Sequential(nn.Linear(1024, 512), nn.LeakyReLU(0.2), nn.Linear(512, 1)).to(device)
for_generator = torch.optim.Adam(generator.parameters(), lr=2e-4)
for_discriminator = torch.optim.Adam(discriminator.parameters(), lr=2e-4)
judge = nn.BCEWithLogitsLoss()

for _ in range(100):
    for (real,) in DataLoader(TensorDataset(torch.randn(320, 1024)), batch_size=32):
        real = real.to(device)
        ones, zeros = torch.ones(32, 1, device=device), torch.zeros(32, 1, device=device)
        fake = generator(torch.randn(32, 64, device=device))
        for_discriminator.zero_grad()
        loss = judge(discriminator(real), ones) + judge(discriminator(fake.detach()), zeros)
        loss.backward()
        for_discriminator.step()
        for_generator.zero_grad()
        judge(discriminator(fake), ones).backward()
        for_generator.step()
