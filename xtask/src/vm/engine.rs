//! One run of the guest: start it, carry its output, keep its time, return the command's exit code.
//!
//! Two engines. QEMU emulates (TCG): slower, but a whole stock kernel with nf_tables, SCTP and BTF, so every backend's
//! tests run there; it is the default. user-mode-linux is three to four times quicker, and has IPVS but no nf_tables.
//! KVM is never probed for: where it exists without really working, a guest hangs.

use super::guest;
use super::packages::{Emulator, Kernel};
use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process_group};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The exit codes of a run that never got a result from the command, as `timeout` and containers use them.
const OUT_OF_TIME: u8 = 124;
const NO_RESULT: u8 = 125;

#[derive(Debug)]
pub(super) struct Machine {
    pub kernel: Kernel,
    /// None: the kernel is itself a program (user-mode-linux).
    pub emulator: Option<Emulator>,
    pub memory: u32,
    pub timeout: Duration,
    pub verbose: bool,
    /// Goes before each line of output, when several guests write at once.
    pub label: Option<String>,
}

/// How a run of the guest ended.
#[derive(Debug)]
pub(super) enum Ended {
    /// The command ended with this code.
    Command(u8),
    /// The guest was stopped at its time limit.
    OutOfTime(Console),
    /// The guest went away before the command had ended.
    Died(ExitStatus, Console),
}

/// What the guest's kernel said.
#[derive(Debug)]
pub(super) struct Console(String);

impl Console {
    /// The line that tells most: the panic, else the last one.
    pub(super) fn gist(&self) -> Option<&str> {
        let lines = || self.0.lines().map(str::trim).filter(|line| !line.is_empty());
        lines()
            .find(|line| line.contains("panic"))
            .or(lines().next_back())
    }
}

/// Run a command in the guest with `work` shared read-write at its own path; why there is no result is told.
pub(super) fn run(machine: &Machine, work: &Path, command: &[String]) -> Result<u8> {
    let (code, why, console) = match attempt(machine, work, command)? {
        Ended::Command(code) => return Ok(code),
        Ended::OutOfTime(console) => {
            let why = format!("the guest was stopped after {} s", machine.timeout.as_secs());
            (OUT_OF_TIME, why, console)
        }
        Ended::Died(status, console) => {
            let why = format!("the guest ended without a result ({status})");
            (NO_RESULT, why, console)
        }
    };
    let tail: Vec<&str> = console.0.lines().rev().take(40).collect();
    for line in tail.iter().rev() {
        eprintln!("vm: console: {line}");
    }
    eprintln!("vm: {why}");
    Ok(code)
}

/// Run a command in the guest; what it writes is passed on, what the kernel says is kept.
pub(super) fn attempt(machine: &Machine, work: &Path, command: &[String]) -> Result<Ended> {
    let control = tempfile::tempdir()?;
    let control = control.path();
    fs::write(control.join("vars"), guest::vars(work, &machine.kernel))?;
    let iptables = if machine.emulator.is_some() {
        guest::Iptables::Debian
    } else {
        guest::Iptables::Legacy
    };
    fs::write(
        control.join("run"),
        guest::script(command, iptables, |name| std::env::var(name).ok()),
    )?;
    let console = control.join("console");
    for fifo in ["out", "err"] {
        let made = Command::new("mkfifo").arg(control.join(fifo)).status()?;
        anyhow::ensure!(made.success(), "mkfifo failed");
    }
    let status = thread::scope(|scope| -> Result<Option<ExitStatus>> {
        let label = machine.label.as_deref();
        let out = carry(scope, &control.join("out"), label, io::stdout())?;
        let err = carry(scope, &control.join("err"), label, io::stderr())?;
        let child = start(machine, work, control, &console)?;
        let status = wait(child, machine.timeout);
        drop((out, err));
        status
    })?;
    if let Some(code) = fs::read_to_string(control.join("rc"))
        .ok()
        .and_then(|text| text.trim().parse().ok())
    {
        return Ok(Ended::Command(code));
    }
    let log = fs::read(&console).unwrap_or_default();
    let console = Console(String::from_utf8_lossy(&log).into_owned());
    Ok(match status {
        None => Ended::OutOfTime(console),
        Some(status) => Ended::Died(status, console),
    })
}

/// Copy a FIFO to a stream until the returned handle and every other writer are gone.
fn carry<'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    fifo: &Path,
    label: Option<&str>,
    to: impl Write + Send + 'static,
) -> Result<File> {
    let (path, label) = (fifo.to_owned(), label.map(|label| format!("{label}: ")));
    scope.spawn(move || match label {
        None => copy(File::open(path)?, to),
        Some(label) => copy_lines(BufReader::new(File::open(path)?), &label, to),
    });
    OpenOptions::new()
        .write(true)
        .open(fifo)
        .with_context(|| format!("open {}", fifo.display()))
}

fn copy(mut from: impl Read, mut to: impl Write) -> io::Result<()> {
    let mut buffer = [0; 64 * 1024];
    loop {
        match from.read(&mut buffer)? {
            0 => return Ok(()),
            n => {
                to.write_all(&buffer[..n])?;
                to.flush()?;
            }
        }
    }
}

/// Whole lines only, each behind the label, so that what several guests write stays readable.
fn copy_lines(mut from: impl BufRead, label: &str, mut to: impl Write) -> io::Result<()> {
    let mut line = label.as_bytes().to_vec();
    while from.read_until(b'\n', &mut line)? > 0 {
        to.write_all(&line)?;
        to.flush()?;
        line.truncate(label.len());
    }
    Ok(())
}

fn start(machine: &Machine, work: &Path, control: &Path, console: &Path) -> Result<Child> {
    let mut command = match &machine.emulator {
        Some(emulator) => qemu(machine, emulator, work, control, console),
        None => user_mode(machine, control),
    };
    let log = || -> Result<Stdio> {
        Ok(if machine.verbose {
            Stdio::inherit()
        } else {
            File::options().create(true).append(true).open(console)?.into()
        })
    };
    command.stdin(Stdio::null()).stdout(log()?).stderr(log()?);
    command.spawn().with_context(|| format!("start {command:?}"))
}

fn qemu(machine: &Machine, emulator: &Emulator, work: &Path, control: &Path, console: &Path) -> Command {
    let mut command = match emulator {
        Emulator::Installed(path) => Command::new(path),
        Emulator::Unpacked(root) => {
            let mut command = Command::new(root.join("usr/bin/qemu-system-x86_64"));
            let lib = |dir: &str| {
                root.join(dir)
                    .join("x86_64-linux-gnu")
                    .to_string_lossy()
                    .into_owned()
            };
            command.env("LD_LIBRARY_PATH", format!("{}:{}", lib("usr/lib"), lib("lib")));
            command
                .arg("-L")
                .arg(root.join("usr/share/qemu"))
                .arg("-L")
                .arg(root.join("usr/share/seabios"));
            command
        }
    };
    let share = |tag: &str, path: &Path| {
        let path = path.to_string_lossy().replace(',', ",,");
        format!("local,id={tag},mount_tag={tag},path={path},security_model=none,multidevs=remap")
    };
    let port = |name: &str| {
        format!(
            "file,id={name},path={}",
            control.join(name).to_string_lossy().replace(',', ",,")
        )
    };
    let console = console.to_string_lossy();
    let serial = if machine.verbose {
        "file:/dev/stderr".to_owned()
    } else {
        format!("file:{console}")
    };
    command
        .args([
            "-accel",
            "tcg,thread=multi",
            "-cpu",
            "max",
            "-smp",
            "1",
            "-m",
            &machine.memory.to_string(),
        ])
        .args(["-nodefaults", "-display", "none", "-nic", "none", "-no-reboot"])
        .arg("-kernel")
        .arg(machine.kernel.dir.join("kernel"))
        .arg("-initrd")
        .arg(machine.kernel.dir.join("initrd"))
        .args([
            "-append",
            "console=ttyS0 quiet panic=-1 mitigations=off nokaslr",
            "-serial",
            &serial,
        ])
        .args([
            "-virtfs",
            &format!("{},readonly=on", share("host", Path::new("/"))),
        ])
        .args(["-virtfs", &share("ctl", control), "-virtfs", &share("work", work)])
        .args([
            "-device",
            "virtio-serial",
            "-chardev",
            &port("out"),
            "-chardev",
            &port("err"),
        ])
        .args([
            "-device",
            "virtserialport,nr=1,chardev=out",
            "-device",
            "virtserialport,nr=2,chardev=err",
        ]);
    command
}

/// The user-mode kernel takes its serial lines as inherited descriptors, which a shell opens for it.
fn user_mode(machine: &Machine, control: &Path) -> Command {
    let mut command = Command::new("sh");
    command
        .args([
            "-c",
            "ctl=$1; shift; exec \"$@\" 3>\"$ctl/out\" 4>\"$ctl/err\"",
            "sh",
        ])
        .arg(control)
        .arg(machine.kernel.dir.join("kernel"))
        .arg(format!("mem={}M", machine.memory))
        .arg(format!("initrd={}", machine.kernel.dir.join("initrd").display()))
        .arg(format!("VM_CTL={}", control.display()))
        .arg(format!("uml_dir={}/", control.display()))
        .args([
            "quiet",
            "con=null",
            "con0=null,fd:1",
            "ssl=null",
            "ssl0=null,fd:3",
            "ssl1=null,fd:4",
        ]);
    command
}

/// Wait for the guest; None when its time ran out and it was killed, with the processes it had made.
fn wait(mut child: Child, timeout: Duration) -> Result<Option<ExitStatus>> {
    let deadline = Instant::now() + timeout;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline {
            if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
                // only the user-mode kernel leads a group, in which its guest's processes are
                let _ = kill_process_group(group, Signal::KILL);
            }
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(50));
    }
}
