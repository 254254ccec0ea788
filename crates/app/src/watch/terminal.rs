//! The terminal: its size, raw mode, and what is drawn on it by the sequences that every terminal since the VT100 knows.

use std::io::{self, Write};
use std::os::fd::AsFd;

use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};

const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
const HOME: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";
const REVERSE: &str = "\x1b[7m";
const BOLD: &str = "\x1b[1m";
const PLAIN: &str = "\x1b[0m";

/// What can be done with the place that output goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Canvas {
    /// Keys are read and the screen is drawn over.
    Screen(Attributes),
    /// A pipe, a file, or a terminal that knows no sequences: one text after another.
    Paper,
}

/// Whether text may be highlighted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Attributes {
    Allowed,
    /// By NO_COLOR.
    None,
}

impl Canvas {
    pub(super) fn find() -> Self {
        let is_screen = isatty(io::stdin()) && isatty(io::stdout());
        let term = std::env::var("TERM").unwrap_or_default();
        if !is_screen || term.is_empty() || term == "dumb" {
            return Self::Paper;
        }
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self::Screen(if unwanted {
            Attributes::None
        } else {
            Attributes::Allowed
        })
    }
}

/// A terminal in raw mode, on its second screen. Dropping it puts everything back.
pub(super) struct Terminal {
    saved: Termios,
    attributes: Attributes,
}

impl Terminal {
    pub(super) fn enter(attributes: Attributes) -> io::Result<Self> {
        let stdin = io::stdin();
        let saved = tcgetattr(&stdin)?;
        let mut raw = saved.clone();
        raw.make_raw();
        tcsetattr(&stdin, OptionalActions::Now, &raw)?;
        let terminal = Self { saved, attributes };
        write_out(ENTER)?;
        Ok(terminal)
    }

    /// Columns and rows; 80 and 24 where the terminal does not say.
    pub(super) fn size() -> (usize, usize) {
        let size = tcgetwinsize(io::stdout().as_fd());
        let size = size.ok().filter(|size| size.ws_col > 0 && size.ws_row > 0);
        size.map_or((80, 24), |size| (size.ws_col.into(), size.ws_row.into()))
    }

    /// Draws lines from the top, the marked one so that it stands out. Nothing flickers: lines are written over.
    pub(super) fn draw(&self, lines: &[String], marked: Option<usize>) -> io::Result<()> {
        let mut text = String::from(HOME);
        for (number, line) in lines.iter().enumerate() {
            if number > 0 {
                text.push_str("\r\n");
            }
            let is_marked = marked == Some(number);
            match self.attributes {
                Attributes::Allowed if is_marked => text.push_str(&format!("{REVERSE}{line}{PLAIN}")),
                Attributes::Allowed if number == 0 => text.push_str(&format!("{BOLD}{line}{PLAIN}")),
                Attributes::None if is_marked => text.push_str(&format!(">{}", skip_one(line))),
                Attributes::Allowed | Attributes::None => text.push_str(line),
            }
            text.push_str(CLEAR_LINE);
        }
        text.push_str(CLEAR_BELOW);
        write_out(&text)
    }
}

/// A mark takes the place of the first letter, so that columns stay where they are.
fn skip_one(line: &str) -> &str {
    let mut letters = line.chars();
    letters.next();
    letters.as_str()
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = write_out(LEAVE);
        let _ = tcsetattr(io::stdin(), OptionalActions::Flush, &self.saved);
    }
}

fn write_out(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}
