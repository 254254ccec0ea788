//! One call of a command: its flags and arguments, and what the commands make of those that they share.

use std::path::PathBuf;
use std::sync::Arc;

use super::commands::Command;
use super::flags::{self, FLAGS, LOGGING, Typed};
use super::{Output, Refused, parse};
use crate::config::Settings;
use crate::config::values::{Word, quote};
use crate::modes::Mode;

/// What was typed behind a command's name.
#[derive(Debug)]
pub struct Invocation {
    pub typed: Typed,
    pub arguments: Vec<String>,
}

/// Whose decisions a command shows.
#[derive(Debug)]
pub enum Origin {
    /// Those of the running daemon, asked over its status socket.
    Running(PathBuf),
    /// Those of a daemon that would be started with these settings.
    Objects(Box<Settings>),
    /// Those of a daemon elsewhere, by what was gathered there; in another mode if one is named.
    Bundle(PathBuf, Option<Word<Mode>>),
}

impl Invocation {
    /// Reads the flags of a command; what belongs to none is an argument.
    pub(super) fn read(command: &Command, args: &[String]) -> Result<Self, Refused> {
        let mut typed = Typed::default();
        let rest =
            flags::parse(&command.tables(), args, &mut typed).map_err(|error| Refused(error.to_string()))?;
        for notice in &rest.notices {
            eprintln!("{notice}");
        }
        let mut arguments = rest.positional;
        arguments.retain(|argument| !argument.is_empty());
        Ok(Self { typed, arguments })
    }

    /// Refuses arguments, for commands that take none.
    pub fn no_arguments(&self) -> Result<(), Refused> {
        match self.arguments.first() {
            None => Ok(()),
            Some(argument) => Err(Refused(format!("unexpected argument {}", quote(argument)))),
        }
    }

    /// The one service that the command is about, if one is named: `namespace/name`, in `default` if none is given.
    pub fn service(&self) -> Result<Option<String>, Refused> {
        if let Some(argument) = self.arguments.get(1) {
            return Err(Refused(format!("unexpected argument {}", quote(argument))));
        }
        let named = |argument: &String| match argument.split('/').collect::<Vec<_>>()[..] {
            [name] if !name.is_empty() => Ok(format!("default/{name}")),
            [namespace, name] if !namespace.is_empty() && !name.is_empty() => Ok(argument.clone()),
            _ => Err(Refused(format!(
                "{} is not the name of a Service: NAMESPACE/NAME",
                quote(argument)
            ))),
        };
        self.arguments.first().map(named).transpose()
    }

    pub fn output(&self) -> Result<Output, Refused> {
        let output = &self.typed.extra.output;
        output
            .known()
            .ok_or_else(|| invalid("-o, --output", output.as_str(), "must be text or json"))
    }

    /// Where the running daemon is asked.
    pub fn socket(&self) -> PathBuf {
        PathBuf::from(&self.typed.config.ferry.status_socket)
    }

    /// What a daemon with these flags would do.
    pub fn settings(self) -> Result<Settings, Refused> {
        parse::prepare(Arc::new(self.typed), parse::Choices::Silent)
            .map(|(settings, _)| settings)
            .map_err(Refused)
    }

    /// Files or a server that were named, else the running daemon.
    pub fn origin(self) -> Result<Origin, Refused> {
        self.origin_named_by(&["manifests", "kubeconfig", "master", "config"], &[])
    }

    /// The same where these flags name objects, and those of the command's own flags do not speak of them.
    pub fn origin_named_by(self, naming: &[&str], own: &[&str]) -> Result<Origin, Refused> {
        let given = &self.typed.given;
        if !self.typed.extra.bundle.is_empty() {
            if let Some(other) = naming.iter().find(|name| given.contains(name)) {
                return Err(Refused(format!("--bundle and --{other} exclude each other")));
            }
            let mode = Some(self.typed.config.mode).filter(|mode| !mode.is_blank());
            return Ok(Origin::Bundle(PathBuf::from(self.typed.extra.bundle), mode));
        }
        if naming.iter().any(|name| given.contains(name)) {
            return self
                .settings()
                .map(|settings| Origin::Objects(Box::new(settings)));
        }
        let mut about_objects = FLAGS.iter().chain(flags::MODE).filter(|flag| {
            flag.group != LOGGING && flag.name != "status-socket" && !own.contains(&flag.name)
        });
        if let Some(stray) = about_objects.find(|flag| given.contains(flag.name)) {
            return Err(Refused(format!(
                "--{} needs one of --manifests, --kubeconfig, --master and --config; without them the running \
                 daemon is asked",
                stray.name
            )));
        }
        Ok(Origin::Running(self.socket()))
    }
}

/// A flag's value that a command cannot use.
pub fn invalid(flag: &str, text: &str, why: &str) -> Refused {
    Refused(format!(
        "invalid argument {} for \"{flag}\" flag: {why}",
        quote(text)
    ))
}
