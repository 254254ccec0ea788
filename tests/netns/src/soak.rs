//! Endurance: hours of mixed churn under traffic, in one mode.
//!
//! A steady service is asked all the time and talked to over connections that stay open, while other services come, go
//! and change, watches break, and `ferry` ends and starts again. Nothing may be lost that could be kept, and what a
//! process or a kernel can leak must stay flat. All of it follows from a seed.

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::Value;

use crate::live::{PATIENT, conversations, dual_stack_service, nothing_lost, settle, stage, stop, streams};
use crate::objects::{self, Endpoint, POD1, POD1_V6, POD2, RPOD1, RPOD1_V6, RPOD2};
use crate::{Mode, Stage};
use ferry_lab::netns::Answer;

/// Services that change, beside the one that does not.
const CHURNING: u32 = 60;
const PAUSE: Duration = Duration::from_millis(50);
const SAMPLE_EVERY: Duration = Duration::from_secs(1);
const RESTART_EVERY: Duration = Duration::from_secs(20);
/// A process is held to itself: the quarter that follows a warm-up, against the last.
const MAX_GROWTH: f64 = 1.10;

/// What can leak, at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    pub second: f64,
    /// Which process since the start; a new one begins anew.
    pub process: u32,
    pub memory_kb: u64,
    pub files: u64,
    pub threads: u64,
    /// Lines of what the kernel holds for us.
    pub kernel_objects: u64,
}

#[derive(Debug)]
pub struct Report {
    pub mode: Mode,
    pub seed: u64,
    pub changes: u64,
    pub requests: usize,
    pub said: u64,
    pub samples: Vec<Sample>,
}

/// Runs for so long; an error as soon as something was lost or has grown.
pub fn run(mode: Mode, length: Duration, seed: u64) -> Result<Report> {
    let mut churn = Churn {
        stage: stage(mode, &dual_stack_service(&[POD1, RPOD1], &[POD1_V6, RPOD1_V6]))?,
        random: StdRng::seed_from_u64(seed),
        present: Vec::new(),
        changes: 0,
    };
    settle(&churn.stage, &Answer::Ok)?;
    let talks = conversations(&churn.stage)?;
    let traffic = streams(&churn.stage, Some(PATIENT))?;
    let samples = churn.go_on(length)?;
    let requests = stop(traffic)?;
    let count = requests.iter().map(|(_, shots)| shots.len()).sum();
    nothing_lost(requests)?;
    let mut said = 0;
    for talk in talks {
        said += talk.stop()?;
    }
    let report = Report {
        mode,
        seed,
        changes: churn.changes,
        requests: count,
        said,
        samples,
    };
    churn.clear().context("at the end")?;
    report.judge()?;
    churn.stage.finish()?;
    Ok(report)
}

struct Churn {
    stage: Stage,
    random: StdRng,
    present: Vec<u32>,
    changes: u64,
}

impl Churn {
    fn go_on(&mut self, length: Duration) -> Result<Vec<Sample>> {
        let begin = Instant::now();
        let mut samples = Vec::new();
        let (mut next_sample, mut next_restart) = (begin, begin + RESTART_EVERY);
        let mut process = 0;
        while begin.elapsed() < length {
            self.change()?;
            if Instant::now() >= next_restart {
                process += u32::from(self.restart()?);
                next_restart = Instant::now() + RESTART_EVERY;
            }
            if Instant::now() >= next_sample {
                samples.push(self.sample(begin.elapsed().as_secs_f64(), process)?);
                next_sample += SAMPLE_EVERY;
            }
            std::thread::sleep(PAUSE);
        }
        Ok(samples)
    }

    /// One of the things that happen in a cluster all day.
    fn change(&mut self) -> Result<()> {
        self.changes += 1;
        let api = self.stage.api();
        if self.random.random_ratio(1, 200) {
            api.cut_watches();
            return Ok(());
        }
        if self.random.random_ratio(1, 400) {
            api.expire();
            return Ok(());
        }
        let n = self.random.random_range(0..CHURNING);
        let [service, slice] = self.objects(n);
        let api = self.stage.api();
        match self.present.iter().position(|have| *have == n) {
            Some(at) if self.random.random_ratio(1, 4) => {
                self.present.swap_remove(at);
                api.delete(&[service, slice])
            }
            Some(_) => api.apply([slice]),
            None => {
                self.present.push(n);
                api.apply([service, slice])
            }
        }
    }

    fn objects(&mut self, n: u32) -> [Value; 2] {
        let name = format!("churn-{n}");
        let mut service = objects::service(&name, &[&format!("10.96.20.{}", n + 1)]);
        if n.is_multiple_of(3) {
            service["spec"]["type"] = "NodePort".into();
            service["spec"]["ports"][0]["nodePort"] = (30_100 + n).into();
        }
        if n.is_multiple_of(5) {
            service = {
                let mut sticky = objects::sticky_service(&name, &format!("10.96.20.{}", n + 1), 30);
                sticky["spec"]["type"] = service["spec"]["type"].clone();
                sticky["spec"]["ports"] = service["spec"]["ports"].clone();
                sticky
            };
        }
        let all: [Endpoint; 4] = [POD1, POD2, RPOD1, RPOD2];
        let some: Vec<Endpoint> = all.into_iter().filter(|_| self.random.random_bool(0.6)).collect();
        [service, objects::slice(&name, "IPv4", &some)]
    }

    /// Ends `ferry` and starts it again, where rules outlive their writer; whether it did. In userspace mode a
    /// connection lives as long as the process that it goes through.
    fn restart(&mut self) -> Result<bool> {
        match self.stage.mode() {
            Mode::Userspace => Ok(false),
            Mode::Nftables | Mode::Iptables | Mode::Ipvs => {
                if self.random.random_bool(0.5) {
                    self.stage.stop_proxy()?;
                } else {
                    self.stage.kill_proxy()?;
                }
                self.stage.start_proxy()?;
                Ok(true)
            }
        }
    }

    fn sample(&mut self, second: f64, process: u32) -> Result<Sample> {
        let id = self.stage.proxy()?.id();
        let proc = Path::new("/proc").join(id.to_string());
        let status = std::fs::read_to_string(proc.join("status")).context("ferry is gone")?;
        let field = |name: &str| -> u64 {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let word = line.and_then(|rest| rest.split_whitespace().next());
            word.and_then(|word| word.parse().ok()).unwrap_or_default()
        };
        Ok(Sample {
            second,
            process,
            memory_kb: field("VmRSS:"),
            threads: field("Threads:"),
            files: std::fs::read_dir(proc.join("fd"))?.count() as u64,
            kernel_objects: self.kernel_objects()?,
        })
    }

    fn kernel_objects(&self) -> Result<u64> {
        let list = match self.stage.mode() {
            Mode::Nftables => "nft list tables | while read -r t; do nft list $t; done",
            Mode::Iptables | Mode::Userspace => "iptables-save; ip6tables-save",
            Mode::Ipvs => "ipvsadm -Sn; ipset save; iptables-save; ip6tables-save",
        };
        Ok(self.stage.network().node().sh(list)?.lines().count() as u64)
    }

    /// Removes what came and went; the kernel must be as small as with the steady service alone.
    fn clear(&mut self) -> Result<()> {
        let mut gone = Vec::new();
        for n in std::mem::take(&mut self.present) {
            gone.extend(self.objects(n));
        }
        self.stage.change(&[], &gone)?;
        let fresh = {
            let quiet = stage(
                self.stage.mode(),
                &dual_stack_service(&[POD1, RPOD1], &[POD1_V6, RPOD1_V6]),
            )?;
            settle(&quiet, &Answer::Ok)?;
            Churn {
                stage: quiet,
                random: self.random.clone(),
                present: Vec::new(),
                changes: 0,
            }
            .kernel_objects()?
        };
        let mut left = 0;
        let clean = ferry_lab::wait_until(Duration::from_secs(20), || {
            left = self.kernel_objects().unwrap_or(u64::MAX);
            left <= fresh
        });
        ensure!(clean, "{left} lines of rules are left, a new process has {fresh}");
        Ok(())
    }
}

impl Report {
    /// Of the process that lived longest, the second quarter against the last.
    fn judge(&self) -> Result<()> {
        let longest = (0..=self.samples.last().map_or(0, |last| last.process))
            .map(|process| self.of(process))
            .max_by_key(Vec::len)
            .unwrap_or_default();
        ensure!(
            longest.len() >= 8,
            "only {} samples of one process",
            longest.len()
        );
        let quarter = longest.len() / 4;
        let (early, late) = (&longest[quarter..2 * quarter], &longest[3 * quarter..]);
        type Measure = (&'static str, fn(&Sample) -> u64, f64);
        let measures: [Measure; 3] = [
            // an allocator keeps a little of what it once had
            ("memory in kB", |sample| sample.memory_kb, 1024.0),
            // in userspace mode a service has files, and how many services there are is chance
            ("open files", |sample| sample.files, 64.0),
            ("threads", |sample| sample.threads, 2.0),
        ];
        for (what, of, slack) in measures {
            let mean = |part: &[&Sample]| {
                part.iter().map(|sample| of(sample) as f64).sum::<f64>() / part.len() as f64
            };
            let (before, after) = (mean(early), mean(late));
            ensure!(
                after <= before * MAX_GROWTH + slack,
                "{what} grew from {before:.0} to {after:.0} (seed {})",
                self.seed
            );
        }
        Ok(())
    }

    fn of(&self, process: u32) -> Vec<&Sample> {
        self.samples
            .iter()
            .filter(|sample| sample.process == process)
            .collect()
    }

    /// The samples as a table for other programs.
    pub fn csv(&self) -> String {
        let mut text = String::from("second,process,memory_kb,files,threads,kernel_objects\n");
        for s in &self.samples {
            let Sample {
                second,
                process,
                memory_kb,
                files,
                threads,
                kernel_objects,
            } = s;
            let _ = writeln!(
                text,
                "{second:.1},{process},{memory_kb},{files},{threads},{kernel_objects}"
            );
        }
        text
    }

    /// The samples as pictures, one under the other.
    pub fn svg(&self) -> String {
        type Series = (&'static str, fn(&Sample) -> u64);
        const SERIES: [Series; 4] = [
            ("memory, kB", |s| s.memory_kb),
            ("open files", |s| s.files),
            ("threads", |s| s.threads),
            ("lines of rules", |s| s.kernel_objects),
        ];
        let last = self.samples.last().map_or(1.0, |sample| sample.second.max(1.0));
        let mut text = String::from(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 720 520\" font-family=\"sans-serif\" font-size=\"12\">\n",
        );
        for (row, (name, of)) in SERIES.into_iter().enumerate() {
            let top = 20.0 + 125.0 * row as f64;
            let most = self.samples.iter().map(of).max().unwrap_or(1).max(1);
            let point = |s: &Sample| {
                let (x, y) = (
                    60.0 + 640.0 * s.second / last,
                    top + 95.0 - 95.0 * of(s) as f64 / most as f64,
                );
                format!("{x:.1},{y:.1}")
            };
            let points: Vec<String> = self.samples.iter().map(point).collect();
            let _ = writeln!(
                text,
                "<text x=\"60\" y=\"{:.0}\">{name} (at most {most})</text>\n<polyline fill=\"none\" stroke=\"#369\" points=\"{}\"/>",
                top - 4.0,
                points.join(" ")
            );
        }
        let _ = writeln!(
            text,
            "<text x=\"600\" y=\"515\">{last:.0} s, {}</text>\n</svg>",
            self.mode.as_str()
        );
        text
    }
}
