//! `ferry status --watch`: a live view of the running daemon in a terminal.
//! Asks over the status socket and draws; changes nothing. Drawn with our own few sequences: a library for it would be
//! more code in the program than the whole view. Where output is no terminal, one status after another is printed.

mod keys;
mod terminal;
mod view;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};

use crate::flows::FlowsReport;
use crate::history::HistoryReport;
use crate::status::{self, AskError, FlowsRequest, HistoryRequest, ServiceDetail, StatusReport};
use terminal::{Attributes, Canvas, Terminal};
use view::{After, Data, Screen, View, key_of};

/// How often the daemon is asked.
const INTERVAL: Duration = Duration::from_secs(2);
/// Over how long rates of flows are taken.
const FLOWS_SECONDS: f64 = 1.0;

/// What happens.
enum Event {
    Typed(Vec<u8>),
    Told(Box<Told>),
    Resized,
    End,
}

/// What the daemon said.
enum Told {
    Status(StatusReport),
    Service(Option<ServiceDetail>),
    History(HistoryReport),
    Flows(FlowsReport),
    Trouble(String),
}

/// Shows the daemon's state until a key, a signal or the end of the input ends it.
pub fn run(socket: &Path) -> anyhow::Result<()> {
    match Canvas::find() {
        Canvas::Paper => print_on(socket),
        Canvas::Screen(attributes) => show(socket, attributes),
    }
}

/// One status after another, for whoever reads it.
fn print_on(socket: &Path) -> anyhow::Result<()> {
    use std::io::Write;
    loop {
        let text = status::ask_status(socket)?.to_string();
        let mut stdout = std::io::stdout().lock();
        let written = writeln!(stdout, "{text}").and_then(|()| stdout.flush());
        if written.is_err() {
            return Ok(());
        }
        drop(stdout);
        thread::sleep(INTERVAL);
    }
}

fn show(socket: &Path, attributes: Attributes) -> anyhow::Result<()> {
    // A daemon that is not there is said before the screen is taken.
    let first = status::ask_status(socket)?;
    let (tell, events) = channel();
    let wanted = Arc::new(Mutex::new(Screen::Services));
    read_keys(tell.clone());
    watch_signals(tell.clone())?;
    let poke = ask_on(socket.to_owned(), Arc::clone(&wanted), tell);
    let terminal = Terminal::enter(attributes).context("the terminal")?;
    let mut session = Session {
        view: View::default(),
        data: Data::default(),
        last: None,
    };
    session.take(Told::Status(first));
    session.draw(&terminal)?;
    while let Some(event) = next(&events) {
        match event {
            Event::End => break,
            Event::Resized => {}
            Event::Told(told) => session.take(*told),
            Event::Typed(bytes) => {
                if session.press(&bytes) == After::Quit {
                    break;
                }
                *lock(&wanted) = session.view.screen.clone();
                let _ = poke.send(());
            }
        }
        session.draw(&terminal)?;
    }
    Ok(())
}

/// The next event; none when nothing can come any more. A second without any draws again all the same.
fn next(events: &Receiver<Event>) -> Option<Event> {
    match events.recv_timeout(Duration::from_secs(1)) {
        Ok(event) => Some(event),
        Err(RecvTimeoutError::Timeout) => Some(Event::Resized),
        Err(RecvTimeoutError::Disconnected) => None,
    }
}

struct Session {
    view: View,
    data: Data,
    /// When the last status came.
    last: Option<Instant>,
}

impl Session {
    fn press(&mut self, bytes: &[u8]) -> After {
        for key in keys::keys(bytes) {
            if self.view.press(key, &self.data) == After::Quit {
                return After::Quit;
            }
        }
        After::GoOn
    }

    fn take(&mut self, told: Told) {
        let data = &mut self.data;
        data.trouble = None;
        match told {
            Told::Status(status) => {
                let now = Instant::now();
                if let (Some(before), Some(last)) = (&data.status, self.last) {
                    let seconds = (now - last).as_secs_f64().max(0.001);
                    data.syncs_per_second = syncs(&status).saturating_sub(syncs(before)) as f64 / seconds;
                    data.connections_per_second = rates(before, &status, seconds);
                }
                self.last = Some(now);
                data.status = Some(status);
            }
            Told::Service(service) => data.service = service,
            Told::History(history) => data.history = Some(history),
            Told::Flows(flows) => data.flows = Some(flows),
            Told::Trouble(why) => data.trouble = Some(why),
        }
    }

    fn draw(&self, terminal: &Terminal) -> std::io::Result<()> {
        let (width, height) = Terminal::size();
        let (lines, marked) = self.view.lines(&self.data, width, height);
        terminal.draw(&lines, marked)
    }
}

fn syncs(status: &StatusReport) -> u64 {
    status.families.iter().map(|family| family.syncs).sum()
}

/// New connections per second, of the rows whose count grew.
fn rates(before: &StatusReport, now: &StatusReport, seconds: f64) -> Vec<(String, f64)> {
    let rows = |status: &StatusReport| status.rows.clone().unwrap_or_default();
    let counts: std::collections::HashMap<String, u64> = rows(before)
        .iter()
        .filter_map(|row| Some((key_of(row), row.connections?)))
        .collect();
    rows(now)
        .iter()
        .filter_map(|row| {
            let (key, count) = (key_of(row), row.connections?);
            let grown = count.checked_sub(*counts.get(&key)?)?;
            Some((key, grown as f64 / seconds))
        })
        .collect()
}

fn lock(wanted: &Mutex<Screen>) -> MutexGuard<'_, Screen> {
    wanted.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads what is typed, on a thread that ends with the process.
fn read_keys(tell: Sender<Event>) {
    thread::spawn(move || {
        let mut buffer = [0; 256];
        loop {
            match std::io::stdin().lock().read(&mut buffer) {
                Ok(0) | Err(_) => {
                    let _ = tell.send(Event::End);
                    return;
                }
                Ok(length) => {
                    if tell.send(Event::Typed(buffer[..length].to_vec())).is_err() {
                        return;
                    }
                }
            }
        }
    });
}

/// Signals end the view as a key would, so that the terminal is left as it was.
fn watch_signals(tell: Sender<Event>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    thread::spawn(move || {
        runtime.block_on(async move {
            let kinds = [
                SignalKind::terminate(),
                SignalKind::hangup(),
                SignalKind::interrupt(),
            ];
            let Ok([mut term, mut hangup, mut interrupt]) = <[_; 3]>::try_from(
                kinds
                    .into_iter()
                    .filter_map(|kind| signal(kind).ok())
                    .collect::<Vec<_>>(),
            ) else {
                return;
            };
            let Ok(mut resized) = signal(SignalKind::window_change()) else {
                return;
            };
            loop {
                let event = tokio::select! {
                    _ = term.recv() => Event::End,
                    _ = hangup.recv() => Event::End,
                    _ = interrupt.recv() => Event::End,
                    _ = resized.recv() => Event::Resized,
                };
                if tell.send(event).is_err() {
                    return;
                }
            }
        });
    });
    Ok(())
}

/// Asks the daemon again and again, and at once when poked: for the status, and for what the screen needs besides.
fn ask_on(socket: PathBuf, wanted: Arc<Mutex<Screen>>, tell: Sender<Event>) -> Sender<()> {
    let (poke, poked) = channel();
    thread::spawn(move || {
        loop {
            let screen = lock(&wanted).clone();
            let mut answers = vec![status::ask_status(&socket).map(Told::Status)];
            answers.extend(ask_for(&screen, &socket));
            for answer in answers {
                let told = answer.unwrap_or_else(|error| Told::Trouble(error.to_string()));
                if tell.send(Event::Told(Box::new(told))).is_err() {
                    return;
                }
            }
            match poked.recv_timeout(INTERVAL) {
                Err(RecvTimeoutError::Disconnected) => return,
                Ok(()) => while poked.try_recv().is_ok() {},
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    });
    poke
}

fn ask_for(screen: &Screen, socket: &Path) -> Option<Result<Told, AskError>> {
    match screen {
        Screen::Services => None,
        Screen::Service(name) => Some(status::ask_service(socket, name).map(Told::Service)),
        Screen::History => {
            let request = HistoryRequest::default();
            Some(status::ask_history(socket, request).map(Told::History))
        }
        Screen::Flows => {
            let request = FlowsRequest {
                service: None,
                seconds: FLOWS_SECONDS,
            };
            Some(status::ask_flows(socket, request).map(Told::Flows))
        }
    }
}
