-- Where Lua finds lua-socket and lua-cjson: the Lua inside Slurm does not look where distributions
-- put them for every architecture. Loading this changes package.path and package.cpath.

local version = _VERSION:match("%d+%.%d+")

for _, root in ipairs({ "/usr/share", "/usr/local/share" }) do
  package.path = package.path .. (";%s/lua/%s/?.lua"):format(root, version)
end
for _, root in ipairs({
  "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib",
}) do
  package.cpath = package.cpath .. (";%s/lua/%s/?.so"):format(root, version)
end
