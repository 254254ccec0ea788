//! What to show the server with each request, kept up to date.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use data_encoding::BASE64;
use http::HeaderValue;
use tokio::sync::watch;

use super::super::requests::Requests;
use super::exec::{Issued, Plugin};
use super::secret::Secret;
use super::settings::{self, Settings, Tokens};

/// What goes with a request, and with the connection that carries it.
#[derive(Clone, Debug, Default)]
pub(super) struct Credential {
    pub(super) authorization: Option<HeaderValue>,
    /// Certificate and key that a plugin issued.
    pub(super) certificate: Option<(Secret, Secret)>,
    expires: Option<SystemTime>,
}

#[derive(Debug)]
pub(super) enum Credentials {
    Fixed(Arc<Credential>),
    TokenFile(TokenFile),
    Plugin(Arc<PluginRuns>),
}

impl Credential {
    /// When its certificate begins and ends to be valid.
    fn validity(&self) -> Option<(SystemTime, SystemTime)> {
        let (certificate, _) = self.certificate.as_ref()?;
        super::tls::validity(certificate.expose().as_bytes())
    }
}

impl Credentials {
    /// A token file must be good at the start; a plugin is not run before there is a request.
    pub(super) fn new(
        settings: &Settings,
        plugin_timeout: Duration,
        requests: &Arc<Requests>,
    ) -> Result<Self, String> {
        let user = &settings.user;
        if let Some(Tokens {
            inline,
            file: Some(path),
        }) = &user.tokens
        {
            let file = TokenFile {
                path: path.clone(),
                inline: inline.clone(),
                last: Mutex::default(),
            };
            if inline.is_none() {
                file.read()?;
            }
            return Ok(Credentials::TokenFile(file));
        }
        if let Some(plugin) = &user.plugin {
            return Ok(Credentials::Plugin(Arc::new(PluginRuns {
                plugin: plugin.clone(),
                timeout: plugin_timeout,
                requests: Arc::clone(requests),
                state: Mutex::default(),
            })));
        }
        let inline = user.tokens.as_ref().and_then(|tokens| tokens.inline.as_ref());
        // What a URL says counts where nothing else is given, but is shown to nobody on the way either.
        let of_url = settings
            .server
            .user
            .as_ref()
            .filter(|_| settings.server.is_https());
        let of_url = of_url.map(|user| (&user.name, &user.password));
        let basic = user
            .basic
            .as_ref()
            .map(|(name, password)| (name, password))
            .or(of_url);
        let authorization = match (inline, basic) {
            (Some(token), _) => {
                Some(bearer(token.expose()).ok_or("the token has a character that it cannot have")?)
            }
            (None, Some((name, password))) => Some(basic_header(name, password)?),
            (None, None) => None,
        };
        Ok(Credentials::Fixed(Arc::new(Credential {
            authorization,
            ..Credential::default()
        })))
    }

    pub(super) async fn current(&self) -> Result<Arc<Credential>, String> {
        match self {
            Credentials::Fixed(credential) => Ok(Arc::clone(credential)),
            Credentials::TokenFile(file) => file.current(),
            Credentials::Plugin(runs) => runs.current(None).await,
        }
    }

    /// The server refused what it was shown: what is there now, if it is something else.
    pub(super) async fn instead_of(
        &self,
        refused: &Arc<Credential>,
    ) -> Result<Option<Arc<Credential>>, String> {
        let now = match self {
            Credentials::Fixed(_) => return Ok(None),
            Credentials::TokenFile(file) => file.current()?,
            Credentials::Plugin(runs) => runs.current(Some(refused)).await?,
        };
        let same = now.authorization == refused.authorization && now.certificate == refused.certificate;
        Ok((!same).then_some(now))
    }

    /// The certificate that a plugin issued last.
    pub(super) fn issued_certificate(&self) -> Option<(Secret, Secret)> {
        match self {
            Credentials::Fixed(_) | Credentials::TokenFile(_) => None,
            Credentials::Plugin(runs) => runs.lock().current.as_ref()?.certificate.clone(),
        }
    }
}

fn bearer(token: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(&format!("Bearer {token}")).ok()?;
    value.set_sensitive(true);
    Some(value)
}

fn basic_header(name: &Secret, password: &Secret) -> Result<HeaderValue, String> {
    let text = format!("{}:{}", name.expose(), password.expose());
    let mut value = HeaderValue::from_str(&format!("Basic {}", BASE64.encode(text.as_bytes())))
        .map_err(|error| error.to_string())?;
    value.set_sensitive(true);
    Ok(value)
}

/// A token that whoever wrote the file may replace at any time. It is short and requests are rare, so it is read for
/// each of them.
#[derive(Debug)]
pub(super) struct TokenFile {
    path: PathBuf,
    inline: Option<Secret>,
    /// The last one that could be read, and whether the file could not be read since.
    last: Mutex<(Option<Arc<Credential>>, bool)>,
}

impl TokenFile {
    fn read(&self) -> Result<Arc<Credential>, String> {
        let path = self.path.display();
        let bytes = settings::read(&self.path)
            .map_err(|error| format!("cannot read the token file {path}: {error}"))?;
        let text = String::from_utf8_lossy(&bytes);
        let token = text.trim();
        if token.is_empty() {
            return Err(format!("the token file {path} is empty"));
        }
        let authorization =
            bearer(token).ok_or_else(|| format!("the token file {path} holds something that is no token"))?;
        Ok(Arc::new(Credential {
            authorization: Some(authorization),
            ..Credential::default()
        }))
    }

    fn current(&self) -> Result<Arc<Credential>, String> {
        let read = self.read();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match read {
            Ok(credential) => {
                *last = (Some(Arc::clone(&credential)), false);
                Ok(credential)
            }
            Err(reason) => {
                let known = match (&last.0, &self.inline) {
                    (Some(known), _) => Arc::clone(known),
                    (None, Some(inline)) => Arc::new(Credential {
                        authorization: bearer(inline.expose()),
                        ..Credential::default()
                    }),
                    (None, None) => return Err(reason),
                };
                if !last.1 {
                    tracing::error!(err = reason, "Unable to rotate token");
                    last.1 = true;
                }
                Ok(known)
            }
        }
    }
}

type Answer = Option<Result<Arc<Credential>, String>>;

/// A plugin, of which at most one process runs at a time, however many requests wait for its answer.
#[derive(Debug)]
pub(super) struct PluginRuns {
    plugin: Plugin,
    timeout: Duration,
    requests: Arc<Requests>,
    state: Mutex<Runs>,
}

#[derive(Debug, Default)]
struct Runs {
    current: Option<Arc<Credential>>,
    running: Option<watch::Receiver<Answer>>,
}

impl PluginRuns {
    fn lock(&self) -> std::sync::MutexGuard<'_, Runs> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it issued, unless that has expired or is `refused`; then it is run again. A request that no longer waits
    /// does not end the run: the next one takes its answer.
    async fn current(self: &Arc<Self>, refused: Option<&Arc<Credential>>) -> Result<Arc<Credential>, String> {
        let mut running = {
            let mut runs = self.lock();
            let expired =
                |credential: &Credential| credential.expires.is_some_and(|end| end <= SystemTime::now());
            if let Some(current) = &runs.current
                && !expired(current)
                && refused.is_none_or(|refused| !Arc::ptr_eq(refused, current))
            {
                return Ok(Arc::clone(current));
            }
            match &runs.running {
                Some(running) => running.clone(),
                None => {
                    let running = Arc::clone(self).start()?;
                    runs.running = Some(running.clone());
                    running
                }
            }
        };
        let answer = running
            .wait_for(Option::is_some)
            .await
            .map(|answer| answer.clone())
            .map_err(|_| "the credential plugin ended without an answer".to_owned())?;
        answer.unwrap_or_else(|| Err("the credential plugin gave no answer".into()))
    }

    fn start(self: Arc<Self>) -> Result<watch::Receiver<Answer>, String> {
        let (tell, told) = watch::channel(None);
        tracing::info!(
            plugin = self.plugin.name(),
            timeout = ?self.timeout,
            "Waiting for the credential plugin"
        );
        let run = move || {
            let issued = self
                .plugin
                .run(self.timeout)
                .and_then(|issued| self.accept(issued));
            let mut runs = self.lock();
            match &issued {
                Ok(credential) => {
                    let replaced = runs.current.replace(Arc::clone(credential));
                    self.note(credential, replaced.as_deref());
                }
                Err(_) => self.requests.note_plugin_failure(),
            }
            runs.running = None;
            tell.send_replace(Some(issued));
        };
        std::thread::Builder::new()
            .name("credentials".into())
            .spawn(run)
            .map_err(|error| format!("no thread for the credential plugin: {error}"))?;
        Ok(told)
    }

    fn note(&self, issued: &Credential, replaced: Option<&Credential>) {
        self.requests
            .note_plugin_answer(issued.validity().map(|(_, end)| end));
        let old = replaced.filter(|old| old.certificate != issued.certificate);
        if let Some((begin, _)) = old.and_then(Credential::validity) {
            self.requests.note_rotation(begin.elapsed().unwrap_or_default());
        }
    }

    fn accept(&self, issued: Issued) -> Result<Arc<Credential>, String> {
        let authorization = match &issued.token {
            Some(token) => Some(
                bearer(token.expose()).ok_or("the credential plugin issued something that is no token")?,
            ),
            None => None,
        };
        Ok(Arc::new(Credential {
            authorization,
            certificate: issued.certificate,
            expires: issued.expires,
        }))
    }
}
