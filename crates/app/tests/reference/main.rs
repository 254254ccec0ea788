//! The pages of the book that are made from the program's own tables, to the letter. `cargo xtask bless` rewrites them.
#![allow(clippy::unwrap_used)]

mod ways;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use ferry_app::cli::flags::{self, FLAGS, Flag, Kind, Typed};
use ferry_app::config::written::Config;
use ferry_app::config::{self, to_yaml, yaml};
use ferry_app::events::REASONS;
use ferry_app::metrics::Catalogue;
use ferry_app::modes::Mode;

const MADE: &str = "<!-- made by `cargo xtask bless` from the program's tables -->\n\n";

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

/// Text in a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;").replace('\n', " ")
}

fn flags_page() -> String {
    let mut page = format!(
        "{MADE}# Flags\n\nThose with a star count beside `--config` too; the others are then left to the file. \
         Deprecated ones have no effect unless it is said.\n"
    );
    let defaults: BTreeMap<&str, String> = flags::values(&Typed::default()).into_iter().collect();
    let mut group = "";
    for flag in FLAGS {
        if flag.group != group {
            group = flag.group;
            let _ = write!(
                page,
                "\n## {group}\n\n| flag | value | default | |\n|---|---|---|---|\n"
            );
        }
        let short = flag.short.map(|c| format!("`-{c}`, ")).unwrap_or_default();
        let star = if flag.counts_with_config { " \\*" } else { "" };
        let default = defaults.get(flag.name).map(String::as_str).unwrap_or_default();
        let shown = match default {
            "" | "[]" => String::new(),
            text => format!("`{}`", cell(text)),
        };
        let help = match flag.deprecated {
            Some(why) => format!("Deprecated: {why} {}", flag.help),
            None => flag.help.to_owned(),
        };
        let _ = writeln!(
            page,
            "| {short}`--{}`{star} | {} | {shown} | {} |",
            flag.name,
            flag.placeholder(),
            cell(help.trim())
        );
    }
    page
}

/// A value that a flag takes and that is not its default.
fn other_value(flag: &Flag) -> &'static str {
    match (flag.name, &flag.kind) {
        ("proxy-mode", _) => "ipvs",
        ("detect-local-mode", _) => "NodeCIDR",
        ("logging-format", _) => "json",
        (_, Kind::Bool(_)) => "other",
        (_, Kind::Int32(_) | Kind::Verbosity(_)) => "7",
        (_, Kind::Float32(_)) => "7",
        (_, Kind::Duration(_)) => "7s",
        (_, Kind::Size(_)) => "7",
        (_, Kind::Ip(_)) => "192.0.2.7",
        (_, Kind::HostPort(_)) => "192.0.2.7:77",
        (_, Kind::VModule(_)) => "a=7",
        (_, Kind::Gates(_)) => "AllAlpha=true",
        _ => "other",
    }
}

/// Every field with its value: `a.b` to text. What is ours is written only where it is not the default, so it is asked for
/// by itself.
fn fields(config: &Config) -> Vec<(String, String)> {
    let mut found = lines(&to_yaml(config));
    found.retain(|(name, _)| !name.starts_with("ferry."));
    let ours = lines(&yaml::yaml(&config.ferry)).into_iter();
    found.extend(ours.map(|(name, value)| (format!("ferry.{name}"), value)));
    found
}

/// The scalars of a document, by their paths.
fn lines(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut path: Vec<(usize, String)> = Vec::new();
    for line in text.lines() {
        let text = line.trim_start();
        let depth = line.len() - text.len();
        path.retain(|(at, _)| *at < depth);
        let Some((name, value)) = text.split_once(':') else {
            continue;
        };
        path.push((depth, name.to_owned()));
        if !value.is_empty() {
            let names: Vec<&str> = path.iter().map(|(_, name)| name.as_str()).collect();
            found.push((names.join("."), value.trim().to_owned()));
        }
    }
    found
}

/// Which flags set a field: those that change it in what would be written.
fn set_by() -> BTreeMap<String, Vec<&'static Flag>> {
    let plain = fields(&config::complete(&Typed::default()).unwrap().config);
    let mut found: BTreeMap<String, Vec<&Flag>> = BTreeMap::new();
    for flag in FLAGS.iter().filter(|flag| flag.deprecated.is_none()) {
        let values = match flag.kind {
            Kind::Bool(_) => vec!["true", "false"],
            _ => vec![other_value(flag)],
        };
        for value in values {
            let mut typed = Typed::default();
            if flag.set(&mut typed, value).is_err() {
                continue;
            }
            let Ok(completed) = config::complete(&typed) else {
                continue;
            };
            for field in fields(&completed.config) {
                let flags = found.entry(field.0.clone()).or_default();
                // the mode moves other fields to its own section
                let is_own = flag.name != "proxy-mode" || field.0 == "mode";
                if is_own && !plain.contains(&field) && !flags.iter().any(|known| known.name == flag.name) {
                    flags.push(flag);
                }
            }
        }
    }
    found
}

fn fields_page() -> String {
    let mut page = format!(
        "{MADE}# Fields of the configuration file\n\n`apiVersion: kubeproxy.config.k8s.io/v1alpha1`, `kind: KubeProxyConfiguration`, as \
         kube-proxy reads it; what begins with `ferry.` is ours. What a field means is said with its flag; fields without a \
         flag are kube-proxy's and mean what they mean there.\n\n| field | default | flag | |\n|---|---|---|---|\n"
    );
    let flags = set_by();
    for (name, value) in fields(&Config::default()) {
        if name == "kind" || name == "apiVersion" {
            continue;
        }
        let set = flags.get(&name).map(Vec::as_slice).unwrap_or_default();
        let names: Vec<String> = set.iter().map(|flag| format!("`--{}`", flag.name)).collect();
        let help: Vec<&str> = set.iter().map(|flag| flag.help).collect();
        let value = match value.as_str() {
            "\"\"" | "null" | "{}" | "[]" => String::new(),
            text => format!("`{}`", cell(text)),
        };
        let _ = writeln!(
            page,
            "| `{name}` | {value} | {} | {} |",
            names.join(", "),
            cell(&help.join(" "))
        );
    }
    page
}

fn metrics_page() -> String {
    let mut page = format!(
        "{MADE}# Metrics\n\nAt `/metrics` of `metricsBindAddress`. Those that begin with `kubeproxy_` or `rest_client_` are kube-proxy's, by name, \
         type, labels and help; those with `ferry_` are ours.\n\n| name | type | labels | modes | |\n|---|---|---|---|---|\n"
    );
    let mut rows: BTreeMap<String, (String, Vec<&str>)> = BTreeMap::new();
    for mode in Mode::ALL {
        for entry in Catalogue::entries(*mode) {
            let row = format!(
                "{} | {} | {{modes}} | {}",
                entry.kind,
                entry.labels.join(", "),
                cell(entry.help)
            );
            rows.entry(entry.name.to_owned())
                .or_insert((row, Vec::new()))
                .1
                .push(mode.as_str());
        }
        for (_, name, help) in mode.metrics.packets {
            let row = format!("counter |  | {{modes}} | {}", cell(help));
            let entry = rows.entry((*name).to_owned()).or_insert((row, Vec::new()));
            entry.1.push(mode.as_str());
        }
    }
    for (name, (row, modes)) in rows {
        let modes = if modes.len() == Mode::ALL.len() {
            "all".to_owned()
        } else {
            modes.join(", ")
        };
        let _ = writeln!(page, "| `{name}` | {} |", row.replace("{modes}", &modes));
    }
    page.push_str(
        "\n`process_*` and `registered_metrics_total` with its siblings are there as everywhere.\n",
    );
    page
}

fn events_page() -> String {
    let mut page = format!(
        "{MADE}# Events\n\n`kubectl events --all-namespaces` shows them; their controller is `kube-proxy`.\n\n| reason | kind | about | when | what to do |\n|---|---|---|---|---|\n"
    );
    for reason in REASONS {
        let _ = writeln!(
            page,
            "| `{}` | {:?} | {} | {} | {} |",
            reason.name,
            reason.severity,
            reason.about,
            cell(reason.when),
            cell(reason.remedy)
        );
    }
    page
}

#[test]
fn golden_pages_of_the_reference_are_what_the_tables_say() {
    let bless = std::env::var_os("FERRY_BLESS").is_some();
    let mut pages = vec![
        ("reference/flags.md".to_owned(), flags_page()),
        ("reference/fields.md".to_owned(), fields_page()),
        ("reference/metrics.md".to_owned(), metrics_page()),
        ("reference/events.md".to_owned(), events_page()),
    ];
    for (mode, way) in ways::WAYS {
        pages.push((format!("pictures/{mode}.svg"), ways::picture(mode, way)));
    }
    let mut wrong = Vec::new();
    for (name, text) in pages {
        let file = docs().join(&name);
        if bless {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, &text).unwrap();
        } else if fs::read_to_string(&file).unwrap_or_default() != text {
            wrong.push(name);
        }
    }
    assert!(
        wrong.is_empty(),
        "not what the tables say (cargo xtask bless): {wrong:?}"
    );
}

/// A picture names what the mode really writes.
#[test]
fn every_name_in_a_picture_is_one_that_the_mode_writes() {
    let golden = docs().join("../tests/golden");
    for mode in Mode::ALL {
        let mut written = String::new();
        for behaviour in fs::read_dir(&golden).unwrap() {
            let files = fs::read_dir(behaviour.unwrap().path()).into_iter().flatten();
            for file in files.map(|file| file.unwrap().path()) {
                if file.file_stem().is_some_and(|stem| stem == mode.as_str()) {
                    written.push_str(&fs::read_to_string(file).unwrap());
                }
            }
        }
        let (_, way) = ways::WAYS
            .iter()
            .find(|(name, _)| *name == mode.as_str())
            .expect("a picture for every mode");
        for text in way.iter().flat_map(|station| station.happens) {
            for name in text.split('`').skip(1).step_by(2) {
                assert!(written.contains(name), "{mode} mode writes no {name}");
            }
        }
    }
}
