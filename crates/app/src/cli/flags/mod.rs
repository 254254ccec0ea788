//! The flags: one table of all of them, and a reader with the manners of Go's flag library.
//! Pure. What always holds: the table is the only place that knows a flag; defaults come from [`Typed::default`].

mod parse;
mod table;
mod typed;

pub use parse::{FlagError, Rest, parse};
pub use table::{COMMAND_FLAGS, FLAGS, Group};
pub use typed::{Extra, Typed, VersionFlag};

use crate::config::values::{
    GoDuration, Quantity, format_f32, format_list, host_port_error, ip_error, parse_bool, parse_f32,
    parse_i32, parse_list, parse_u31, quote,
};
use crate::config::written::VModule;

/// One flag.
#[derive(Debug)]
pub struct Flag {
    pub name: &'static str,
    pub short: Option<char>,
    pub kind: Kind,
    pub group: Group,
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
    /// A text that is one of a few words; only help and completions care.
    Word(fn(&mut Typed) -> &mut String, &'static [&'static str]),
    Path(fn(&mut Typed) -> &mut String),
    List(fn(&mut Typed) -> &mut Option<Vec<String>>),
    Size(fn(&mut Typed) -> &mut Quantity),
    Ip(fn(&mut Typed) -> &mut String),
    HostPort(fn(&mut Typed) -> &mut String),
    Verbosity(fn(&mut Typed) -> &mut u32),
    VModule(fn(&mut Typed) -> &mut Vec<VModule>),
    Gates,
    Version,
    Help,
}

impl Flag {
    /// What the flag takes when it stands without `=`; `None`: it needs a value.
    pub fn implied(&self) -> Option<&'static str> {
        matches!(self.kind, Kind::Bool(_) | Kind::Version | Kind::Help).then_some("true")
    }

    /// The name of the value in the help.
    pub fn placeholder(&self) -> &'static str {
        match self.kind {
            Kind::Bool(_) | Kind::Help => "",
            Kind::Int32(_) => "int",
            Kind::Float32(_) => "float",
            Kind::Duration(_) => "duration",
            Kind::Text(_) => "string",
            Kind::Word(..) => "name",
            Kind::Path(_) => "path",
            Kind::List(_) => "list",
            Kind::Size(_) => "quantity",
            Kind::Ip(_) => "ip",
            Kind::HostPort(_) => "ip:port",
            Kind::Verbosity(_) => "level",
            Kind::VModule(_) => "pattern=N,...",
            Kind::Gates => "Name=bool,...",
            Kind::Version => "version[=true]",
        }
    }

    /// The flag as messages name it.
    fn spelled(&self) -> String {
        match self.short {
            Some(short) => format!("-{short}, --{}", self.name),
            None => format!("--{}", self.name),
        }
    }

    /// Takes a value; the error is Go's message.
    fn set(&self, typed: &mut Typed, text: &str) -> Result<(), String> {
        let again = typed.given.contains(self.name);
        match &self.kind {
            Kind::Bool(place) => *place(typed) = parse_bool(text)?,
            Kind::Help => typed.help = parse_bool(text)?,
            Kind::Int32(place) => *place(typed) = parse_i32(text)?,
            Kind::Float32(place) => *place(typed) = parse_f32(text)?,
            Kind::Duration(place) => *place(typed) = GoDuration::parse(text)?,
            Kind::Text(place) | Kind::Word(place, _) | Kind::Path(place) => text.clone_into(place(typed)),
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
            Kind::Gates => {
                let gates = parse_gates(text)?;
                typed.config.feature_gates.extend(gates);
            }
            Kind::Version => typed.version = VersionFlag::parse(text)?,
        }
        typed.given.insert(self.name);
        Ok(())
    }

    /// The value as Go's flag library shows it.
    pub fn show(&self, typed: &Typed) -> String {
        let mut typed = typed.clone();
        let typed = &mut typed;
        match &self.kind {
            Kind::Bool(place) => place(typed).to_string(),
            Kind::Help => typed.help.to_string(),
            Kind::Int32(place) => place(typed).to_string(),
            Kind::Float32(place) => format_f32(*place(typed)),
            Kind::Duration(place) => place(typed).to_string(),
            Kind::Text(place)
            | Kind::Word(place, _)
            | Kind::Path(place)
            | Kind::Ip(place)
            | Kind::HostPort(place) => place(typed).clone(),
            Kind::List(place) => format_list(place(typed).as_deref().unwrap_or_default()),
            Kind::Size(place) => place(typed).to_string(),
            Kind::Verbosity(place) => place(typed).to_string(),
            Kind::VModule(place) => show_vmodule(place(typed)),
            Kind::Gates => {
                let pairs = typed
                    .config
                    .feature_gates
                    .iter()
                    .map(|(name, on)| format!("{name}={on}"));
                pairs.collect::<Vec<_>>().join(",")
            }
            Kind::Version => typed.version.to_string(),
        }
    }
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

fn show_vmodule(items: &[VModule]) -> String {
    items
        .iter()
        .map(|item| format!("{}={}", item.pattern, item.verbosity))
        .collect::<Vec<_>>()
        .join(",")
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
