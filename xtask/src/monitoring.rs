//! Dashboards and alerts, held to a real Prometheus that scrapes a real `ferry`.
//!
//! May touch: a network namespace of its own, the cache of Debian packages. Always holds: every query of the
//! dashboard in `deploy/monitoring`, and every family that kube-proxy's usual dashboards ask for, has an answer.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use ferry_lab::api::{Api, Object, generate::Cluster};
use serde_json::{Value, json};

use crate::vm::packages;
use crate::{shell, test};

#[derive(Debug, Default, clap::Args)]
pub(crate) struct Args {
    /// We are in a namespace of our own already
    #[arg(long, hide = true)]
    inside: bool,
}

/// How long the queries may take to have answers: a few scrapes.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// How often the cluster changes, so that rates have something to count.
const CHANGE_INTERVAL: Duration = Duration::from_millis(500);
const PROMETHEUS: &str = "127.0.0.1:19090";
const METRICS: &str = "127.0.0.1:10249";
const CLUSTER: Cluster = Cluster {
    services: 3,
    endpoints: 2,
};

/// What the dashboards that people have for kube-proxy ask for, by panel. Goroutines are the one thing missing: there
/// are none.
const KUBE_PROXY_PANELS: [(&str, &str); 9] = [
    ("up", r#"sum(up{job="kube-proxy"})"#),
    (
        "rules sync rate",
        r#"sum by (instance) (rate(kubeproxy_sync_proxy_rules_duration_seconds_count{job="kube-proxy"}[5m]))"#,
    ),
    (
        "rules sync latency",
        r#"histogram_quantile(0.99, rate(kubeproxy_sync_proxy_rules_duration_seconds_bucket{job="kube-proxy"}[5m]))"#,
    ),
    (
        "network programming rate",
        r#"sum by (instance) (rate(kubeproxy_network_programming_duration_seconds_count{job="kube-proxy"}[5m]))"#,
    ),
    (
        "network programming latency",
        r#"histogram_quantile(0.99, sum by (instance, le) (rate(kubeproxy_network_programming_duration_seconds_bucket{job="kube-proxy"}[5m])))"#,
    ),
    (
        "kube API request rate",
        r#"sum(rate(rest_client_requests_total{job="kube-proxy",code=~"2.."}[5m]))"#,
    ),
    (
        "kube API request latency",
        r#"histogram_quantile(0.99, sum by (verb, le) (rate(rest_client_request_duration_seconds_bucket{job="kube-proxy",verb="GET"}[5m])))"#,
    ),
    ("memory", r#"process_resident_memory_bytes{job="kube-proxy"}"#),
    (
        "CPU usage",
        r#"rate(process_cpu_seconds_total{job="kube-proxy"}[5m])"#,
    ),
];

pub(crate) fn run(args: &Args) -> Result<()> {
    if args.inside {
        return scraped(&tools()?);
    }
    test::build()?;
    let tools = tools()?;
    let directory = shell::root().join("deploy/monitoring");
    let promtool = || {
        let mut promtool = Command::new(tools.join("promtool"));
        promtool.current_dir(&directory);
        promtool
    };
    shell::run(promtool().args(["check", "rules", "ferry-rules.yaml"]))?;
    shell::run(promtool().args(["test", "rules", "ferry-rules.test.yaml"]))?;
    every_alert_is_tested(&directory)?;
    let again = std::env::current_exe()?;
    shell::run(
        Command::new("unshare")
            .args([
                "--net",
                "sh",
                "-c",
                "ip link set lo up && exec \"$0\" monitoring --inside",
            ])
            .arg(again),
    )
}

/// Where Prometheus' programs are: installed, or unpacked from Debian's package (whose service is not wanted here).
fn tools() -> Result<PathBuf> {
    if let Some(installed) = packages::on_path("promtool").as_deref().and_then(Path::parent) {
        return Ok(installed.to_owned());
    }
    let dir = packages::default_cache()?.join("prometheus");
    if !dir.join("usr/bin/promtool").exists() {
        eprintln!("monitoring: fetching prometheus into {}", dir.display());
        packages::fill(&dir, |tmp| {
            let debs = packages::download(tmp, &["prometheus"])?;
            packages::unpack(&debs[0], tmp, &[])?;
            Ok(fs::remove_file(&debs[0])?)
        })
        .context("fetch prometheus")?;
    }
    Ok(dir.join("usr/bin"))
}

/// promtool tests what the test file names; this makes sure that it names every alert, both silent and firing.
fn every_alert_is_tested(directory: &Path) -> Result<()> {
    let rules = fs::read_to_string(directory.join("ferry-rules.yaml"))?;
    let tests = fs::read_to_string(directory.join("ferry-rules.test.yaml"))?;
    for alert in rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "))
    {
        ensure!(
            tests.contains(&format!("alertname: {alert}}}"))
                && tests.contains(&format!("alertname: {alert}\n")),
            "the alert {alert} is not tested both ways"
        );
    }
    Ok(())
}

/// A child that ends with the test, whatever becomes of it.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn scraped(tools: &Path) -> Result<()> {
    let scratch = tempfile::tempdir()?;
    let api = Api::start()?;
    api.apply(CLUSTER.objects())?;
    let _ferry = start(
        Command::new(shell::target_dir().join("debug/ferry"))
            .args([
                "--hostname-override=node-a",
                "--proxy-mode=nftables",
                "--traffic-counters",
            ])
            .args([
                "--conntrack-max-per-core=0",
                "--detect-local-mode=ClusterCIDR",
                "--cluster-cidr=10.244.0.0/16",
            ])
            .arg(format!("--master={}", api.url()))
            .arg(format!("--metrics-bind-address={METRICS}"))
            .arg("--status-socket")
            .arg(scratch.path().join("status.sock")),
        &scratch.path().join("ferry.log"),
    )?;
    let config = scratch.path().join("prometheus.yml");
    let scrape = json!({
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
        "scrape_configs": [{"job_name": "kube-proxy", "static_configs": [{"targets": [METRICS]}]}],
    });
    fs::write(&config, scrape.to_string())?;
    let _prometheus = start(
        Command::new(tools.join("prometheus"))
            .arg(format!("--config.file={}", config.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                scratch.path().join("data").display()
            ))
            .arg(format!("--web.listen-address={PROMETHEUS}")),
        &scratch.path().join("prometheus.log"),
    )?;
    let mut wanted = dashboard_queries(&shell::root().join("deploy/monitoring/ferry-dashboard.json"))?;
    wanted
        .extend(KUBE_PROXY_PANELS.map(|(panel, query)| (format!("kube-proxy's {panel}"), query.to_owned())));
    let total = wanted.len();
    let unanswered = ask_while_changing(&api, wanted)?;
    if !unanswered.is_empty() {
        let log = fs::read_to_string(scratch.path().join("ferry.log")).unwrap_or_default();
        bail!(
            "no answer from Prometheus for:\n{}\nferry said:\n{log}",
            unanswered.join("\n")
        );
    }
    println!("monitoring: {total} queries answered");
    Ok(())
}

fn start(command: &mut Command, log: &Path) -> Result<Running> {
    let log = fs::File::create(log)?;
    let child = command
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn();
    Ok(Running(child.with_context(|| format!("start {command:?}"))?))
}

/// Every query of a Grafana dashboard by its panel, with Grafana's variables filled in. Also what a linter would say:
/// panels have titles and numbers of their own, and do not overlap.
fn dashboard_queries(file: &Path) -> Result<Vec<(String, String)>> {
    let dashboard: Value =
        serde_json::from_slice(&fs::read(file)?).with_context(|| format!("{} is no JSON", file.display()))?;
    let panels = dashboard["panels"].as_array().context("a dashboard has panels")?;
    let mut queries = Vec::new();
    let mut taken = std::collections::BTreeSet::new();
    for panel in panels {
        let title = panel["title"].as_str().filter(|title| !title.is_empty());
        let title = title.with_context(|| format!("a panel without a title: {}", panel["id"]))?;
        ensure!(
            taken.insert((panel["id"].to_string(), None)),
            "{title}: its id is taken"
        );
        let place = &panel["gridPos"];
        let number = |field: &str| {
            place[field]
                .as_u64()
                .with_context(|| format!("{title}: no gridPos.{field}"))
        };
        let (x, y, w, h) = (number("x")?, number("y")?, number("w")?, number("h")?);
        ensure!(x + w <= 24, "{title}: wider than the dashboard");
        for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            ensure!(
                taken.insert((String::new(), Some(cell))),
                "{title}: overlaps another panel"
            );
        }
        for target in panel["targets"].as_array().into_iter().flatten() {
            let query = target["expr"]
                .as_str()
                .with_context(|| format!("{title}: a target without a query"))?;
            let query = query.replace("$__rate_interval", "1m").replace("$instance", ".*");
            ensure!(!query.contains('$'), "{title}: an unknown variable in {query}");
            queries.push((title.to_owned(), query));
        }
    }
    Ok(queries)
}

/// Changes the cluster until every query has an answer; gives those that have none in the end.
fn ask_while_changing(api: &Api, mut wanted: Vec<(String, String)>) -> Result<Vec<String>> {
    let start = Instant::now();
    for generation in 1.. {
        api.apply([changed_slice(generation)?])?;
        // Makes the proxy ask again, so that there is a rate of requests.
        api.cut_watches();
        sleep(CHANGE_INTERVAL);
        wanted.retain(|(_, query)| !is_answered(query));
        if wanted.is_empty() || start.elapsed() > ANSWER_TIMEOUT {
            break;
        }
    }
    Ok(wanted
        .into_iter()
        .map(|(panel, query)| format!("{panel}: {query}"))
        .collect())
}

/// An endpoint replaced, and when: that is what network programming latency is counted from.
fn changed_slice(generation: u32) -> Result<Object> {
    let now = shell::output(Command::new("date").args(["--utc", "+%FT%TZ"]))?;
    let mut slice = CLUSTER.slice(0, generation % 2);
    slice["metadata"]["annotations"] = json!({
        "endpoints.kubernetes.io/last-change-trigger-time": String::from_utf8(now)?.trim(),
    });
    Ok(slice)
}

/// Whether Prometheus has a number for it.
fn is_answered(query: &str) -> bool {
    let answer = Command::new("curl")
        .args(["--silent", "--max-time", "5", "--get", "--data-urlencode"])
        .arg(format!("query={query}"))
        .arg(format!("http://{PROMETHEUS}/api/v1/query"))
        .output();
    let Some(answer) = answer
        .ok()
        .and_then(|out| serde_json::from_slice::<Value>(&out.stdout).ok())
    else {
        return false;
    };
    let series = answer["data"]["result"].as_array();
    series
        .into_iter()
        .flatten()
        .any(|one| one["value"][1].as_str().is_some_and(|value| value != "NaN"))
}
