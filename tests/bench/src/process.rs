//! What a process has cost so far, as the kernel counts it.

use anyhow::{Context, Result};

/// CPU seconds of the process and of all children that it has waited for.
pub(crate) fn cpu_seconds(pid: u32) -> Result<f64> {
    let ticks = ticks(pid)?.iter().sum::<u64>();
    Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// CPU time of all children that it has waited for, in the kernel's ticks.
pub(crate) fn child_ticks(pid: u32) -> Result<u64> {
    Ok(ticks(pid)?[2..].iter().sum())
}

/// utime, stime, cutime, cstime.
fn ticks(pid: u32) -> Result<[u64; 4]> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // the name in parentheses may hold anything, so count from its end: utime is the 12th field after it
    let (_, rest) = stat.rsplit_once(')').context("no stat")?;
    let mut fields = rest.split_whitespace().skip(11).map(str::parse);
    let mut next = || anyhow::Ok(fields.next().context("a short stat")??);
    Ok([next()?, next()?, next()?, next()?])
}

/// (resident now, peak so far) in MB.
pub(crate) fn memory(pid: u32) -> Result<(f64, f64)> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let field = |name: &str| {
        let line = status
            .lines()
            .find_map(|l| l.strip_prefix(name))
            .context("no such field")?;
        let kilobytes: f64 = line
            .trim_start_matches(':')
            .trim()
            .trim_end_matches(" kB")
            .parse()?;
        anyhow::Ok(kilobytes / 1024.0)
    };
    Ok((field("VmRSS")?, field("VmHWM")?))
}
