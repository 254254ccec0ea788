//! What the live view shows: which screen, which rows, in which order; and how keys change that. Pure.

use super::keys::Key;
use crate::flows::FlowsReport;
use crate::history::HistoryReport;
use crate::status::{ServiceDetail, StatusReport, StatusRow};

/// Which screen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Screen {
    Services,
    /// The endpoints of one.
    Service(String),
    History,
    Flows,
}

/// By what the services are sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Name,
    FewestEndpoints,
    Connections,
}

impl Order {
    fn next(self) -> Self {
        match self {
            Self::Name => Self::FewestEndpoints,
            Self::FewestEndpoints => Self::Connections,
            Self::Connections => Self::Name,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::FewestEndpoints => "fewest endpoints",
            Self::Connections => "connections",
        }
    }
}

/// What the daemon said last.
#[derive(Debug, Default)]
pub(super) struct Data {
    pub(super) status: Option<StatusReport>,
    /// Syncs of all families per second, by the last two statuses.
    pub(super) syncs_per_second: f64,
    /// New connections per second of each row, where they are counted.
    pub(super) connections_per_second: Vec<(String, f64)>,
    pub(super) service: Option<ServiceDetail>,
    pub(super) history: Option<HistoryReport>,
    pub(super) flows: Option<FlowsReport>,
    /// Why there is nothing newer.
    pub(super) trouble: Option<String>,
}

/// What is looked at.
#[derive(Debug)]
pub(super) struct View {
    pub(super) screen: Screen,
    order: Order,
    filter: String,
    /// The filter is being typed.
    typing: bool,
    /// The row under the cursor, or the first line shown.
    at: usize,
}

/// Whether to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum After {
    GoOn,
    Quit,
}

impl Default for View {
    fn default() -> Self {
        Self {
            screen: Screen::Services,
            order: Order::Name,
            filter: String::new(),
            typing: false,
            at: 0,
        }
    }
}

const PAGE: usize = 15;

impl View {
    pub(super) fn press(&mut self, key: Key, data: &Data) -> After {
        if key == Key::Quit {
            return After::Quit;
        }
        if self.typing {
            self.type_filter(key);
            return After::GoOn;
        }
        match key {
            Key::Char('q') => return After::Quit,
            Key::Up | Key::Char('k') => self.at = self.at.saturating_sub(1),
            Key::Down | Key::Char('j') => self.at += 1,
            Key::PageUp => self.at = self.at.saturating_sub(PAGE),
            Key::PageDown => self.at += PAGE,
            Key::Char('h') => self.show(Screen::History),
            Key::Char('f') => self.show(Screen::Flows),
            Key::Back | Key::Erase => self.show(Screen::Services),
            Key::Char('/') => {
                self.typing = true;
                self.filter.clear();
                self.show(Screen::Services);
            }
            Key::Char('s') if self.screen == Screen::Services => self.order = self.order.next(),
            Key::Enter if self.screen == Screen::Services => {
                let rows = self.rows(data);
                let row = rows.get(self.at.min(rows.len().saturating_sub(1)));
                if let Some(row) = row {
                    let name = service_of(&row.service).to_owned();
                    self.show(Screen::Service(name));
                }
            }
            Key::Char(_) | Key::Enter | Key::Quit => {}
        }
        After::GoOn
    }

    fn type_filter(&mut self, key: Key) {
        match key {
            Key::Char(letter) => self.filter.push(letter),
            Key::Erase => drop(self.filter.pop()),
            Key::Enter => self.typing = false,
            Key::Back => {
                self.typing = false;
                self.filter.clear();
            }
            _ => {}
        }
        self.at = 0;
    }

    fn show(&mut self, screen: Screen) {
        self.screen = screen;
        self.at = 0;
    }

    /// The rows that the filter lets through, in order.
    fn rows<'a>(&self, data: &'a Data) -> Vec<&'a StatusRow> {
        let all = data.status.iter().flat_map(|status| status.rows.iter().flatten());
        let mut rows: Vec<&StatusRow> = all
            .filter(|row| row.service.contains(&self.filter) || row.address.contains(&self.filter))
            .collect();
        match self.order {
            Order::Name => {}
            Order::FewestEndpoints => rows.sort_by_key(|row| row.used),
            Order::Connections => rows.sort_by_key(|row| std::cmp::Reverse(row.connections)),
        }
        rows
    }

    /// The lines of a screen of this size, each no longer than it is wide; and which of them is under the cursor.
    pub(super) fn lines(&self, data: &Data, width: usize, height: usize) -> (Vec<String>, Option<usize>) {
        let mut lines = head(data);
        let room = height.saturating_sub(lines.len() + 2).max(1);
        let (title, body, cursor) = self.body(data);
        lines.push(title);
        // The cursor, or the first line that was scrolled to, stays in sight.
        let last = body.len().saturating_sub(1);
        let at = self.at.min(last);
        let first = if cursor {
            at.saturating_sub(room - 1)
        } else {
            at.min(body.len().saturating_sub(room))
        };
        let marked = cursor
            .then(|| lines.len() + at - first)
            .filter(|_| !body.is_empty());
        lines.extend(body.into_iter().skip(first).take(room));
        lines.resize(height.saturating_sub(1).max(lines.len()), String::new());
        lines.push(self.foot());
        let cut = |line: String| -> String {
            let plain = line.chars().map(|c| if c.is_control() { ' ' } else { c });
            plain.take(width).collect()
        };
        (lines.into_iter().map(cut).collect(), marked)
    }

    /// The title, the lines, and whether one of them is chosen rather than scrolled to.
    fn body(&self, data: &Data) -> (String, Vec<String>, bool) {
        match &self.screen {
            Screen::Services => {
                let rows = self.rows(data);
                let title = format!(
                    "{:<34} {:<26} {:>9} {:>9} {:>9}",
                    "SERVICE", "ADDRESS", "ENDPOINTS", "CONN", "CONN/S"
                );
                let rate = |row: &StatusRow| {
                    let mut rates = data.connections_per_second.iter();
                    let of = |(key, _): &&(String, f64)| *key == key_of(row);
                    rates
                        .find(of)
                        .map_or("-".into(), |(_, rate)| format!("{rate:.1}"))
                };
                let line = |row: &&StatusRow| {
                    let endpoints = format!("{}/{}", row.used, row.known);
                    let count = row.connections.map_or("-".into(), |count| count.to_string());
                    format!(
                        "{:<34} {:<26} {endpoints:>9} {count:>9} {:>9}",
                        row.service,
                        row.address,
                        rate(row)
                    )
                };
                (title, rows.iter().map(line).collect(), true)
            }
            Screen::Service(name) => {
                let text = match &data.service {
                    Some(detail) if detail.service.name == *name => detail.service.to_string(),
                    _ => "asking ...".into(),
                };
                (
                    format!("SERVICE {name}"),
                    text.lines().map(str::to_owned).collect(),
                    false,
                )
            }
            Screen::History => {
                let text = data.history.as_ref().map(ToString::to_string).unwrap_or_default();
                let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
                lines.reverse();
                ("HISTORY, the newest first".into(), lines, false)
            }
            Screen::Flows => {
                let text = data.flows.as_ref().map(ToString::to_string);
                let text = text.unwrap_or_else(|| "listening for a second ...".into());
                ("FLOWS".into(), text.lines().map(str::to_owned).collect(), false)
            }
        }
    }

    fn foot(&self) -> String {
        if self.typing {
            return format!("filter: {}_", self.filter);
        }
        let filter = if self.filter.is_empty() {
            "none"
        } else {
            &self.filter
        };
        match self.screen {
            Screen::Services => format!(
                "q quit  / filter ({filter})  s sort ({})  enter endpoints  h history  f flows",
                self.order.as_str()
            ),
            _ => "q quit  esc back  up/down scroll  h history  f flows".into(),
        }
    }
}

/// `namespace/name` of `namespace/name:port`.
fn service_of(port: &str) -> &str {
    port.split_once(':').map_or(port, |(service, _)| service)
}

/// What makes a row the same in the next status.
pub(super) fn key_of(row: &StatusRow) -> String {
    format!("{} {}", row.service, row.address)
}

fn head(data: &Data) -> Vec<String> {
    let Some(status) = &data.status else {
        let why = data.trouble.as_deref().unwrap_or("asking the daemon ...");
        return vec![format!("ferry: {why}")];
    };
    let mut lines = vec![format!(
        "ferry {} {} mode, node {}, up {}; {} services, {} slices, {} not served; {:.1} syncs/s",
        status.version,
        status.mode,
        status.node,
        crate::status::span(status.uptime_seconds as f64),
        status.services,
        status.slices,
        status.not_served,
        data.syncs_per_second
    )];
    for family in &status.families {
        let text = family.to_string();
        lines.extend(text.lines().map(str::to_owned));
    }
    lines.extend(
        status
            .problems
            .iter()
            .take(2)
            .map(|problem| format!("problem  {problem}")),
    );
    if let Some(trouble) = &data.trouble {
        lines.push(format!("no news: {trouble}"));
    }
    lines.push(String::new());
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(services: usize) -> Data {
        let row = |n: usize| StatusRow {
            service: format!("shop/s{n:05}:http"),
            address: format!("10.96.{}.{}:80/tcp", n / 250, n % 250),
            used: n % 7,
            known: 7,
            internal: "forward".into(),
            external: None,
            connections: Some((n * 31 % 1000) as u64),
        };
        let status = StatusReport {
            version: "0.1.0".into(),
            kubernetes: "v1".into(),
            mode: "nftables".into(),
            node: "a\u{1b}[31mnode".into(),
            pid: 1,
            source: "x".into(),
            uptime_seconds: 1,
            waiting_for: Vec::new(),
            syncing_seconds: None,
            families: Vec::new(),
            services,
            slices: services,
            not_served: 0,
            skipped: Vec::new(),
            problems: Vec::new(),
            notes: Vec::new(),
            rows: Some((0..services).map(row).collect()),
        };
        Data {
            status: Some(status),
            ..Data::default()
        }
    }

    #[test]
    fn every_frame_fits_and_shows_what_is_under_the_cursor() {
        let data = data(10_000);
        let mut view = View::default();
        for (width, height) in [(80, 24), (20, 5), (200, 60)] {
            for key in [Key::Down, Key::PageDown, Key::PageDown, Key::Up, Key::Char('s')] {
                view.press(key, &data);
                let (lines, marked) = view.lines(&data, width, height);
                assert!(lines.iter().all(|line| line.chars().count() <= width));
                assert!(
                    lines.iter().all(|line| !line.contains('\u{1b}')),
                    "others' text stays text"
                );
                assert!(lines[marked.unwrap()].starts_with("shop/s"), "{lines:?}");
            }
            if height >= 24 {
                assert_eq!(view.lines(&data, width, height).0.len(), height);
            }
        }
        assert_eq!(view.press(Key::Char('q'), &data), After::Quit);
    }

    #[test]
    fn a_filter_is_typed_and_a_service_is_opened() {
        let data = data(100);
        let mut view = View::default();
        for key in [Key::Char('/'), Key::Char('q'), Key::Erase] {
            assert_eq!(
                view.press(key, &data),
                After::GoOn,
                "letters are typed, not obeyed"
            );
        }
        for letter in "s00042".chars() {
            view.press(Key::Char(letter), &data);
        }
        view.press(Key::Enter, &data);
        assert_eq!(view.rows(&data).len(), 1);
        view.press(Key::Enter, &data);
        assert_eq!(view.screen, Screen::Service("shop/s00042".into()));
        view.press(Key::Back, &data);
        assert_eq!(view.screen, Screen::Services);
        view.press(Key::Char('s'), &data);
        view.press(Key::Char('/'), &data);
        view.press(Key::Back, &data);
        assert_eq!(view.rows(&data)[0].used, 0, "the fewest endpoints first");
    }
}
