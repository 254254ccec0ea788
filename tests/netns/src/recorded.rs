//! Recorded scenarios as cases: the same cluster, flags, steps and probes; the same outcomes.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use ferry_lab::netns::Outcome;
use ferry_lab::oracle::{self, Disturbance, Fetch, Fetched, Step};

use crate::{Mode, Stage};

/// Runs one scenario.
pub fn run(mode: Mode, name: &str) -> Result<()> {
    let scenario = oracle::scenario(name)?;
    let expected = oracle::expected(mode.like(), name)?;
    let mut stage = Stage::up(mode, &scenario.args, &scenario.objects)?;
    for (step, want) in scenario.steps.iter().zip(&expected.steps) {
        let done = change(&mut stage, step)
            .and_then(|()| stage.expect_by(&step.probes, &want.probes, |o| view(mode, o)))
            .and_then(|()| fetch(&stage, &step.http, &want.http));
        done.with_context(|| format!("{name}, {}: step {:?}", mode.as_str(), step.name))?;
    }
    stage.finish()
}

/// What can be compared. In userspace mode every connection to a backend is the node's own.
fn view(mode: Mode, mut outcome: Outcome) -> Outcome {
    if mode == Mode::Userspace {
        outcome.sources.clear();
    }
    outcome
}

fn change(stage: &mut Stage, step: &Step) -> Result<()> {
    match step.api {
        Some(Disturbance::Close) => stage.api().cut_watches(),
        Some(Disturbance::Expire) => stage.api().expire(),
        None => {}
    }
    if step.api.is_some() {
        stage.wait_for_watches()?;
    }
    if !step.apply.is_empty() || !step.delete.is_empty() {
        stage.change(&step.apply, &step.delete)?;
    }
    Ok(())
}

fn fetch(stage: &Stage, fetches: &[Fetch], want: &[Fetched]) -> Result<()> {
    for (fetch, want) in fetches.iter().zip(want) {
        let mut want = want.clone();
        if want.url.ends_with("/proxyMode") {
            want.body = stage.mode().as_str().to_owned();
        }
        let mut got = once(stage, fetch)?;
        let came = ferry_lab::wait_until(Duration::from_secs(5), || {
            if got != want {
                got = once(stage, fetch).unwrap_or_else(|e| Fetched {
                    body: e.to_string(),
                    ..got.clone()
                });
            }
            got == want
        });
        if !came {
            bail!("want {want:?}\n     got {got:?}");
        }
    }
    Ok(())
}

fn once(stage: &Stage, fetch: &Fetch) -> Result<Fetched> {
    let host = stage.network().host(&fetch.from)?;
    let out = host
        .command("curl")
        .args(["-gs", "-m", "5", "-w", "\n%{http_code}", &fetch.url])
        .output()?;
    let text = String::from_utf8_lossy(&out.stdout);
    let (body, code) = text.rsplit_once('\n').context("curl said nothing")?;
    let body = if fetch.body {
        oracle::without_times(body)
    } else {
        String::new()
    };
    Ok(Fetched {
        url: fetch.url.clone(),
        code: code.to_owned(),
        body,
    })
}
