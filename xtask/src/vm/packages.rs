//! What the guest is made of, taken from Debian's packages once and kept in a cache directory.
//!
//! May touch: the cache directory, `apt-get download` (no root, nothing is installed), dpkg-deb, tar, xz.
//! Always holds: a directory in the cache is complete, because it is filled under another name and then renamed.

use super::guest;
use anyhow::{Context, Result, bail, ensure};
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What of a kernel package serves booting and networking. A full tree would make each module lookup slow.
const WANTED: &[&str] = &[
    "*/vmlinuz-*",
    "*/linux.uml",
    "*/modules.*",
    "*/kernel/net/*",
    "*/kernel/lib/*",
    "*/kernel/crypto/*",
    "*/kernel/arch/x86/crypto/*",
    "*/kernel/drivers/net/*",
    "*/kernel/drivers/virtio/*",
    "*/kernel/drivers/char/*",
    "*/kernel/fs/9p/*",
    "*/kernel/fs/netfs/*",
    "*/kernel/fs/fscache/*",
    "*/kernel/fs/overlayfs/*",
];

/// The modules it takes to mount the host's root.
const BOOT_MODULES: &[&str] = &["/virtio", "/9p", "/netfs", "/fscache", "/overlay", "/modules."];

/// Part of the cache's names: another number whenever what is built here, or the guest's first script, changes.
const RECIPE: u32 = 3;

/// A prepared kernel: `kernel`, `initrd`, `busybox`, `modprobe`, `lib/modules`, `version` in one directory.
#[derive(Debug)]
pub(super) struct Kernel {
    pub dir: PathBuf,
    pub version: String,
}

/// Where the emulator is and what it needs to start.
#[derive(Debug)]
pub(super) enum Emulator {
    /// Found on PATH.
    Installed(PathBuf),
    /// Unpacked, with its libraries and firmware, under this root.
    Unpacked(PathBuf),
}

pub(crate) fn default_cache() -> Result<PathBuf> {
    let base = match std::env::var_os("XDG_CACHE_HOME") {
        Some(dir) => PathBuf::from(dir),
        None => PathBuf::from(std::env::var_os("HOME").context("neither XDG_CACHE_HOME nor HOME is set")?)
            .join(".cache"),
    };
    Ok(base.join("ferry-vm"))
}

/// The kernel of a Debian package, fetched at the first call.
pub(super) fn kernel(cache: &Path, package: &str) -> Result<Kernel> {
    let dir = cache.join(format!("{package}-{RECIPE}"));
    if !dir.join("version").exists() {
        eprintln!("vm: fetching {package} into {}", dir.display());
        fill(&dir, |tmp| build_kernel(tmp, package))
            .with_context(|| format!("prepare the kernel of {package}"))?;
    }
    let version = fs::read_to_string(dir.join("version"))?.trim().to_owned();
    Ok(Kernel { dir, version })
}

/// QEMU: the installed one, else the package and every package it needs that is not installed, unpacked in the cache.
pub(super) fn emulator(cache: &Path) -> Result<Emulator> {
    const NAME: &str = "qemu-system-x86_64";
    if let Some(path) = on_path(NAME) {
        return Ok(Emulator::Installed(path));
    }
    let dir = cache.join("qemu-system-x86");
    if !dir.join("usr/bin").join(NAME).exists() {
        eprintln!("vm: fetching qemu-system-x86 into {}", dir.display());
        fill(&dir, build_emulator).context("prepare qemu-system-x86")?;
    }
    Ok(Emulator::Unpacked(dir))
}

pub(crate) fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}

/// Fill `dir` by way of a sibling that is renamed when complete; a second run that was quicker wins.
pub(crate) fn fill(dir: &Path, build: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let parent = dir.parent().context("the cache directory has no parent")?;
    fs::create_dir_all(parent).with_context(|| format!("create {}", parent.display()))?;
    let tmp = tempfile::Builder::new().prefix(".filling-").tempdir_in(parent)?;
    build(tmp.path())?;
    if let Err(error) = fs::rename(tmp.path(), dir) {
        ensure!(dir.exists(), "rename into {}: {error}", dir.display());
    }
    Ok(())
}

fn build_kernel(dir: &Path, package: &str) -> Result<()> {
    let real = real_package(package)?;
    let (deb, busybox) = (download(dir, &[&real])?, download(dir, &["busybox-static"])?);
    unpack(&busybox[0], &dir.join("b"), &[])?;
    let found = find(&dir.join("b"), |path| path.ends_with("bin/busybox"))?;
    fs::copy(
        found.first().context("no busybox in busybox-static")?,
        dir.join("busybox"),
    )?;
    std::os::unix::fs::symlink("busybox", dir.join("modprobe"))?;

    let tree = dir.join("k");
    unpack(&deb[0], &tree, WANTED)?;
    let modules = find(&tree, |path| {
        path.file_name() == Some(OsStr::new("modules")) && path.is_dir()
    })?;
    fs::create_dir(dir.join("lib"))?;
    fs::rename(
        modules.first().context("no modules in the kernel package")?,
        dir.join("lib/modules"),
    )?;
    let packed = find(&dir.join("lib"), |path| {
        path.extension() == Some(OsStr::new("xz"))
    })?;
    for some in packed.chunks(200) {
        run(Command::new("xz").arg("-d").args(some))?;
    }
    let version = fs::read_dir(dir.join("lib/modules"))?
        .next()
        .context("no kernel version directory")??;
    let version = version.file_name().to_string_lossy().into_owned();
    run(Command::new(dir.join("busybox"))
        .args(["depmod", "-b"])
        .arg(dir)
        .arg(&version))?;
    place_kernel(dir, &tree)?;
    build_initrd(dir, &version)?;
    for scrap in ["k", "b", "i"] {
        fs::remove_dir_all(dir.join(scrap))?;
    }
    for deb in deb.iter().chain(&busybox) {
        fs::remove_file(deb)?;
    }
    fs::write(dir.join("version"), version)?;
    Ok(())
}

/// A meta-package depends on the package of the current kernel, whose name changes with each release.
fn real_package(package: &str) -> Result<String> {
    let show = || output(Command::new("apt-cache").args(["show", package]));
    let shown = show().or_else(|_| {
        // a fresh machine has no package lists
        run(Command::new("apt-get").args(["-qq", "update"])).and_then(|()| show())
    })?;
    let depends = shown.lines().find_map(|line| line.strip_prefix("Depends: "));
    let real = depends.and_then(|list| {
        list.split([',', ' ', '|'])
            .find(|name| name.starts_with("linux-image-"))
    });
    Ok(real.unwrap_or(package).to_owned())
}

fn place_kernel(dir: &Path, tree: &Path) -> Result<()> {
    if let Some(uml) = find(tree, |path| path.ends_with("linux.uml"))?.first() {
        fs::rename(uml, dir.join("kernel"))?;
        return Ok(());
    }
    let images = find(tree, |path| {
        path.file_name()
            .is_some_and(|n| n.to_string_lossy().starts_with("vmlinuz-"))
    })?;
    let image = fs::read(images.first().context("no kernel image in the package")?)?;
    fs::write(dir.join("kernel"), inner_kernel(&image).unwrap_or(image))?;
    Ok(())
}

/// The ELF kernel inside a bzImage: booted directly (PVH) it saves the guest the decompression, which is half of an
/// emulated boot. The header tells where the payload is; the payload's last four bytes are its unpacked size.
fn inner_kernel(image: &[u8]) -> Option<Vec<u8>> {
    let word = |at: usize| Some(u32::from_le_bytes(image.get(at..at + 4)?.try_into().ok()?) as usize);
    let start = (usize::from(*image.get(497)?) + 1) * 512 + word(584)?;
    let payload = image.get(start..start + word(588)?.checked_sub(4)?)?;
    ["xz", "zstd"]
        .iter()
        .find_map(|tool| filter(tool, payload).ok())
        .filter(|kernel| kernel.starts_with(b"\x7fELF"))
}

fn filter(tool: &str, input: &[u8]) -> Result<Vec<u8>> {
    let mut child = Command::new(tool)
        .arg("-dc")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let mut stdin = child.stdin.take().context("no stdin")?;
    let out = std::thread::scope(|scope| {
        scope.spawn(move || stdin.write_all(input));
        child.wait_with_output()
    })?;
    ensure!(out.status.success(), "{tool} failed");
    Ok(out.stdout)
}

fn build_initrd(dir: &Path, version: &str) -> Result<()> {
    let root = dir.join("i");
    fs::create_dir_all(root.join("bin"))?;
    fs::copy(dir.join("busybox"), root.join("bin/busybox"))?;
    for file in find(&dir.join("lib"), |path| path.is_file())? {
        let name = file.strip_prefix(dir)?;
        if BOOT_MODULES
            .iter()
            .any(|part| name.to_string_lossy().contains(part))
        {
            let to = root.join(name);
            fs::create_dir_all(to.parent().context("a file without a directory")?)?;
            fs::copy(&file, to)?;
        }
    }
    run(Command::new(dir.join("busybox"))
        .args(["depmod", "-b"])
        .arg(&root)
        .arg(version))?;
    fs::write(root.join("init"), guest::INIT)?;
    run(Command::new("chmod").arg("755").arg(root.join("init")))?;
    let pack = "find . | \"$0\" cpio -o -H newc 2>/dev/null";
    let made = Command::new("sh")
        .args(["-c", pack])
        .arg(dir.join("busybox"))
        .current_dir(&root)
        .output()?;
    ensure!(made.status.success(), "cpio failed");
    fs::write(dir.join("initrd"), made.stdout)?;
    Ok(())
}

fn build_emulator(dir: &Path) -> Result<()> {
    let plan = output(Command::new("apt-get").args([
        "install",
        "-s",
        "--no-install-recommends",
        "qemu-system-x86",
    ]))?;
    let needed: Vec<&str> = plan
        .lines()
        .filter_map(|line| line.strip_prefix("Inst ")?.split(' ').next())
        .collect();
    ensure!(
        !needed.is_empty(),
        "apt-get knows no way to get qemu-system-x86:\n{plan}"
    );
    for deb in download(dir, &needed)? {
        unpack(&deb, dir, &[])?;
        fs::remove_file(deb)?;
    }
    Ok(())
}

pub(crate) fn download(dir: &Path, packages: &[&str]) -> Result<Vec<PathBuf>> {
    let before = find(dir, is_deb)?;
    run(Command::new("apt-get")
        .args(["-qq", "download"])
        .args(packages)
        .current_dir(dir))
    .context("apt-get download (the package lists may be old: apt-get update)")?;
    let debs: Vec<PathBuf> = find(dir, is_deb)?
        .into_iter()
        .filter(|deb| !before.contains(deb))
        .collect();
    ensure!(
        debs.len() == packages.len(),
        "asked for {packages:?}, got {debs:?}"
    );
    Ok(debs)
}

fn is_deb(path: &Path) -> bool {
    path.extension() == Some(OsStr::new("deb"))
}

/// Unpack a package, all of it or what the patterns name (a pattern that matches nothing is fine).
pub(crate) fn unpack(deb: &Path, into: &Path, patterns: &[&str]) -> Result<()> {
    fs::create_dir_all(into)?;
    let mut tar = Command::new("dpkg-deb")
        .arg("--fsys-tarfile")
        .arg(deb)
        .stdout(Stdio::piped())
        .spawn()?;
    let stream = tar.stdout.take().context("no stdout")?;
    let mut extract = Command::new("tar");
    extract
        .args(["-x", "--no-same-owner", "-C"])
        .arg(into)
        .stdin(stream)
        .stderr(Stdio::null());
    if !patterns.is_empty() {
        extract.args([
            "--wildcards",
            "--exclude=*/drivers/net/ethernet/*",
            "--exclude=*/drivers/net/wireless/*",
        ]);
        extract.args(patterns);
    }
    let extracted = extract.status()?.success();
    ensure!(tar.wait()?.success(), "dpkg-deb could not read {}", deb.display());
    ensure!(
        extracted || !patterns.is_empty(),
        "tar could not unpack {}",
        deb.display()
    );
    Ok(())
}

fn find(dir: &Path, wanted: impl Fn(&Path) -> bool) -> Result<Vec<PathBuf>> {
    let (mut found, mut open) = (Vec::new(), vec![dir.to_owned()]);
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(&dir).with_context(|| format!("list {}", dir.display()))? {
            let entry = entry?;
            if wanted(&entry.path()) {
                found.push(entry.path());
            }
            if entry.file_type()?.is_dir() {
                open.push(entry.path());
            }
        }
    }
    found.sort();
    Ok(found)
}

fn run(command: &mut Command) -> Result<()> {
    output(command).map(drop)
}

fn output(command: &mut Command) -> Result<String> {
    let out = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("start {command:?}"))?;
    if !out.status.success() {
        bail!(
            "{command:?}: {}: {}",
            out.status,
            String::from_utf8_lossy(&out.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}
