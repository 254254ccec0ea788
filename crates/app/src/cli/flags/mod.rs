//! The flags: one table of all of them, and a reader with the manners of Go's flag library.
//! Pure. What always holds: the table is the only place that knows a flag; defaults come from [`Typed::default`].

mod nearest;
mod parse;
mod table;
mod typed;

use std::collections::BTreeMap;
use std::fmt::Display;

pub use nearest::{did_you_mean, nearest};
pub use parse::{FlagError, Rest, parse};
pub use table::{
    ASKER, BUNDLE, FILE, FLAGS, HELP, KEEP, LISTEN, LIVE, LOGGING, MODE, OTHER, OUTPUT, PACKET, RULES, SINCE,
    SOCKET, WATCH,
};
pub use typed::{Extra, Given, Typed, VersionFlag};

use crate::config::values::{
    Choice, GoDuration, Quantity, format_f32, format_list, host_port_error, ip_error, parse_bool, parse_f32,
    parse_i32, parse_list, parse_u31, quote,
};
use crate::config::written::VModule;

/// One flag.
#[derive(Debug)]
pub struct Flag {
    pub name: &'static str,
    pub short: Option<char>,
    pub kind: Kind,
    /// What it is about: the heading in the help.
    pub group: &'static str,
    /// Whether it still counts when `--config` is given.
    pub counts_with_config: bool,
    /// Why it should not be used any more; such flags are not in the help.
    pub deprecated: Option<&'static str>,
    pub help: &'static str,
}

/// The place a flag's value is kept, and with it the flag's type.
#[derive(Debug)]
pub enum Kind {
    Bool(fn(&mut Typed) -> &mut bool),
    Int32(fn(&mut Typed) -> &mut i32),
    Float32(fn(&mut Typed) -> &mut f32),
    Duration(fn(&mut Typed) -> &mut GoDuration),
    Text(fn(&mut Typed) -> &mut String),
    Word(fn(&mut Typed) -> &mut dyn Choice),
    Path(fn(&mut Typed) -> &mut String),
    List(fn(&mut Typed) -> &mut Option<Vec<String>>),
    Size(fn(&mut Typed) -> &mut Quantity),
    Ip(fn(&mut Typed) -> &mut String),
    HostPort(fn(&mut Typed) -> &mut String),
    Verbosity(fn(&mut Typed) -> &mut u32),
    VModule(fn(&mut Typed) -> &mut Vec<VModule>),
    Gates(fn(&mut Typed) -> &mut BTreeMap<String, bool>),
    Version(fn(&mut Typed) -> &mut VersionFlag),
    Help(fn(&mut Typed) -> &mut bool),
}

impl Flag {
    /// What the flag takes when it stands without `=`; `None`: it needs a value.
    pub fn implied(&self) -> Option<&'static str> {
        matches!(self.kind, Kind::Bool(_) | Kind::Version(_) | Kind::Help(_)).then_some("true")
    }

    /// The name of the value in the help.
    pub fn placeholder(&self) -> &'static str {
        match self.kind {
            Kind::Bool(_) | Kind::Help(_) => "",
            Kind::Int32(_) => "int",
            Kind::Float32(_) => "float",
            Kind::Duration(_) => "duration",
            Kind::Text(_) => "string",
            Kind::Word(_) => "name",
            Kind::Path(_) => "path",
            Kind::List(_) => "list",
            Kind::Size(_) => "quantity",
            Kind::Ip(_) => "ip",
            Kind::HostPort(_) => "ip:port",
            Kind::Verbosity(_) => "level",
            Kind::VModule(_) => "pattern=N,...",
            Kind::Gates(_) => "Name=bool,...",
            Kind::Version(_) => "version[=true]",
        }
    }

    /// The flag as messages name it.
    fn spelled(&self) -> String {
        match self.short {
            Some(short) => format!("-{short}, --{}", self.name),
            None => format!("--{}", self.name),
        }
    }

    /// Takes a value, and notes that it was given.
    pub fn set(&'static self, typed: &mut Typed, text: &str) -> Result<(), FlagError> {
        self.read(typed, text).map_err(|why| {
            FlagError(format!(
                "invalid argument {} for {} flag: {why}",
                quote(text),
                quote(&self.spelled())
            ))
        })?;
        typed.given.push(self, text);
        Ok(())
    }

    /// Reads a value; the error is Go's message.
    fn read(&self, typed: &mut Typed, text: &str) -> Result<(), String> {
        let again = typed.given.contains(self.name);
        match &self.kind {
            Kind::Bool(place) | Kind::Help(place) => *place(typed) = parse_bool(text)?,
            Kind::Int32(place) => *place(typed) = parse_i32(text)?,
            Kind::Float32(place) => *place(typed) = parse_f32(text)?,
            Kind::Duration(place) => *place(typed) = GoDuration::parse(text)?,
            Kind::Text(place) | Kind::Path(place) => text.clone_into(place(typed)),
            Kind::Word(place) => place(typed).choose(text),
            Kind::List(place) => {
                let values = parse_list(text)?;
                let list = place(typed);
                match list {
                    Some(list) if again => list.extend(values),
                    _ => *list = Some(values),
                }
            }
            Kind::Size(place) => *place(typed) = Quantity::parse(text)?,
            // An empty address changes nothing, as with kube-proxy.
            Kind::Ip(place) => set_address(place(typed), text, ip_error)?,
            Kind::HostPort(place) => set_address(place(typed), text, host_port_error)?,
            Kind::Verbosity(place) => *place(typed) = parse_u31(text)?,
            Kind::VModule(place) => place(typed).extend(parse_vmodule(text)?),
            Kind::Gates(place) => place(typed).extend(parse_gates(text)?),
            Kind::Version(place) => *place(typed) = VersionFlag::parse(text)?,
        }
        Ok(())
    }

    /// The value as Go's flag library shows it.
    pub fn show(&self, typed: &Typed) -> String {
        self.shown(&mut typed.clone())
    }

    fn shown(&self, typed: &mut Typed) -> String {
        match &self.kind {
            Kind::Bool(place) | Kind::Help(place) => place(typed).to_string(),
            Kind::Int32(place) => place(typed).to_string(),
            Kind::Float32(place) => format_f32(*place(typed)),
            Kind::Duration(place) => place(typed).to_string(),
            Kind::Text(place) | Kind::Path(place) | Kind::Ip(place) | Kind::HostPort(place) => {
                place(typed).clone()
            }
            Kind::Word(place) => place(typed).as_str().to_owned(),
            Kind::List(place) => format_list(place(typed).as_deref().unwrap_or_default()),
            Kind::Size(place) => place(typed).to_string(),
            Kind::Verbosity(place) => place(typed).to_string(),
            Kind::VModule(place) => pairs(place(typed).iter().map(|item| (&item.pattern, item.verbosity))),
            Kind::Gates(place) => pairs(place(typed).iter()),
            Kind::Version(place) => place(typed).to_string(),
        }
    }

    /// The words that the flag knows, if it takes one of a few.
    pub fn words(&self) -> Vec<&'static str> {
        match &self.kind {
            Kind::Word(place) => place(&mut Typed::default()).names(),
            _ => Vec::new(),
        }
    }
}

/// Every flag of the daemon with its value as `/flagz` shows it, sorted by name.
pub fn values(typed: &Typed) -> Vec<(&'static str, String)> {
    let mut typed = typed.clone();
    let values = FLAGS.iter().map(|flag| (flag.name, flag.shown(&mut typed)));
    let mut values: Vec<_> = values.collect();
    values.sort();
    values
}

fn pairs<K: Display, V: Display>(pairs: impl Iterator<Item = (K, V)>) -> String {
    let pairs: Vec<String> = pairs.map(|(key, value)| format!("{key}={value}")).collect();
    pairs.join(",")
}

fn set_address(place: &mut String, text: &str, error: fn(&str) -> Option<String>) -> Result<(), String> {
    if text.is_empty() {
        return Ok(());
    }
    if let Some(error) = error(text) {
        return Err(error);
    }
    text.clone_into(place);
    Ok(())
}

fn parse_vmodule(text: &str) -> Result<Vec<VModule>, String> {
    let mut items = Vec::new();
    for item in text.split(',').filter(|item| !item.is_empty()) {
        let parts: Vec<&str> = item.split('=').collect();
        let [pattern, level] = parts[..] else {
            return Err(format!("{} does not have the pattern=N format", quote(item)));
        };
        if pattern.is_empty() || level.is_empty() {
            return Err(format!("{} does not have the pattern=N format", quote(item)));
        }
        let verbosity =
            parse_u31(level).map_err(|error| format!("parsing verbosity in {}: {error}", quote(item)))?;
        items.push(VModule {
            pattern: pattern.to_owned(),
            verbosity,
        });
    }
    Ok(items)
}

fn parse_gates(text: &str) -> Result<Vec<(String, bool)>, String> {
    let mut gates = Vec::new();
    for pair in text.split(',').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').ok_or("malformed pair, expect string=bool")?;
        let (name, value) = (name.trim(), value.trim());
        let value =
            parse_bool(value).map_err(|error| format!("invalid value of {name}: {value}, err: {error}"))?;
        gates.push((name.to_owned(), value));
    }
    Ok(gates)
}
