//! Reads arguments with the manners of Go's flag library.

use super::nearest::{did_you_mean, nearest};
use super::{Flag, Typed};

/// Why a command line was refused, in Go's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct FlagError(pub String);

/// What was read besides the flags' values.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Rest {
    /// Arguments that belong to no flag.
    pub positional: Vec<String>,
    /// What to say about flags that should not be used any more.
    pub notices: Vec<String>,
}

/// Reads arguments into `typed`. Flags and other arguments may be mixed; `--` ends the flags.
pub fn parse(tables: &[&'static [Flag]], args: &[String], typed: &mut Typed) -> Result<Rest, FlagError> {
    let mut reader = Reader {
        tables,
        args: args.iter(),
        typed,
        rest: Rest::default(),
    };
    while let Some(arg) = reader.args.next() {
        if arg == "--" {
            reader.rest.positional.extend(reader.args.by_ref().cloned());
        } else if let Some(long) = arg.strip_prefix("--") {
            reader.long(arg, long)?;
        } else if let Some(short) = arg.strip_prefix('-').filter(|short| !short.is_empty()) {
            reader.short(short)?;
        } else {
            reader.rest.positional.push(arg.clone());
        }
        if reader.typed.help {
            break;
        }
    }
    Ok(reader.rest)
}

struct Reader<'a> {
    tables: &'a [&'static [Flag]],
    args: std::slice::Iter<'a, String>,
    typed: &'a mut Typed,
    rest: Rest,
}

impl Reader<'_> {
    fn flags(&self) -> impl Iterator<Item = &'static Flag> {
        self.tables.iter().flat_map(|table| table.iter())
    }

    /// `--name`, `--name=value` or `--name value`.
    fn long(&mut self, arg: &str, long: &str) -> Result<(), FlagError> {
        if long.starts_with(['-', '=']) {
            return Err(FlagError(format!("bad flag syntax: {arg}")));
        }
        let (name, value) = match long.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (long, None),
        };
        let wanted = name.replace('_', "-");
        let Some(flag) = self.flags().find(|flag| flag.name == wanted) else {
            let near = nearest(&wanted, self.flags().map(|flag| flag.name));
            let hint = did_you_mean(near.iter().map(|name| format!("--{name}")));
            return Err(FlagError(format!("unknown flag: --{name}{hint}")));
        };
        let value = match value {
            Some(value) => value,
            None => match flag.implied() {
                Some(implied) => implied.to_owned(),
                None => {
                    let missing = || FlagError(format!("flag needs an argument: --{name}"));
                    self.args.next().cloned().ok_or_else(missing)?
                }
            },
        };
        self.set(flag, &value)
    }

    /// `-x`, `-xVALUE`, `-x=VALUE` or `-x VALUE`; several flags without value may share a dash.
    fn short(&mut self, shorts: &str) -> Result<(), FlagError> {
        let mut rest = shorts;
        while let Some(c) = rest.chars().next() {
            let Some(flag) = self.flags().find(|flag| flag.short == Some(c)) else {
                return Err(FlagError(format!("unknown shorthand flag: '{c}' in -{rest}")));
            };
            let after = &rest[c.len_utf8()..];
            if let Some(value) = after.strip_prefix('=').filter(|value| !value.is_empty()) {
                return self.set(flag, value);
            }
            if let Some(implied) = flag.implied() {
                self.set(flag, implied)?;
                rest = after;
                continue;
            }
            if !after.is_empty() {
                return self.set(flag, after);
            }
            let missing = || FlagError(format!("flag needs an argument: '{c}' in -{rest}"));
            let value = self.args.next().cloned().ok_or_else(missing)?;
            return self.set(flag, &value);
        }
        Ok(())
    }

    fn set(&mut self, flag: &'static Flag, value: &str) -> Result<(), FlagError> {
        flag.set(self.typed, value)?;
        if let Some(notice) = flag.deprecated {
            self.rest
                .notices
                .push(format!("Flag --{} has been deprecated, {notice}", flag.name));
        }
        Ok(())
    }
}
