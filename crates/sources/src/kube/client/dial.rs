//! From an address to a stream: TCP, a proxy where there is one, TLS where it is wanted.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use data_encoding::BASE64;
use futures::stream::{FuturesUnordered, StreamExt};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::address::{Url, UserInfo};
use super::tls::Untrusted;

/// Between attempts at the addresses of one name, so that one that swallows packets does not hold up the others.
const FALLBACK_DELAY: Duration = Duration::from_millis(300);
/// The longest answer of a proxy that is read.
const MAX_PROXY_ANSWER: usize = 16 << 10;
/// A connection on which nothing arrives any more is given up after less than this: probes begin after the first
/// time and are repeated after the second; data that is not acknowledged counts too.
const KEEPALIVE_TIME: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_RETRIES: u32 = 3;
const UNACKNOWLEDGED_TIMEOUT: Duration = Duration::from_secs(30);

/// A stream of any kind.
pub(super) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// What both sides agreed to speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Http1,
    Http2,
}

/// The way to a server.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) server: Url,
    pub(super) proxy: Option<Url>,
    pub(super) connect_timeout: Duration,
    pub(super) handshake_timeout: Duration,
}

impl Route {
    /// Whether the proxy is sent the requests themselves, and not asked for a tunnel.
    pub(super) fn is_forwarded(&self) -> bool {
        let forwards = |proxy: &Url| proxy.scheme == "http" || proxy.is_https();
        !self.server.is_https() && self.proxy.as_ref().is_some_and(forwards)
    }

    /// Connects; with `tls` the server is made to prove its name.
    pub(super) async fn connect(
        &self,
        tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
    ) -> Result<(Box<dyn Io>, Protocol), String> {
        let stream: Box<dyn Io> = match &self.proxy {
            None => Box::new(self.tcp(&self.server).await?),
            Some(proxy) => {
                self.through(proxy, tls.as_ref().map(|(config, _)| config))
                    .await?
            }
        };
        match tls {
            None => Ok((stream, Protocol::Http1)),
            Some((config, name)) => self.handshake(stream, config, name, &self.server).await,
        }
    }

    async fn tcp(&self, to: &Url) -> Result<TcpStream, String> {
        let place = (to.host.as_str(), to.port_or_default());
        let dialing = async {
            let addresses: Vec<SocketAddr> = tokio::net::lookup_host(place)
                .await
                .map_err(|error| format!("cannot look up {}: {error}", to.host))?
                .collect();
            let stream = race(&addresses)
                .await
                .map_err(|error| format!("cannot connect to {}: {error}", to.authority()))?;
            prepare(&stream).map_err(|error| format!("cannot set up a connection: {error}"))?;
            Ok(stream)
        };
        let late = |_| {
            let seconds = self.connect_timeout.as_secs_f32();
            format!(
                "cannot connect to {}: no answer within {seconds} s",
                to.authority()
            )
        };
        timeout(self.connect_timeout, dialing).await.map_err(late)?
    }

    async fn handshake(
        &self,
        stream: Box<dyn Io>,
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
        with: &Url,
    ) -> Result<(Box<dyn Io>, Protocol), String> {
        let connector = tokio_rustls::TlsConnector::from(config);
        let stream = timeout(self.handshake_timeout, connector.connect(name, stream))
            .await
            .map_err(|_| {
                let seconds = self.handshake_timeout.as_secs_f32();
                format!("no TLS handshake with {} within {seconds} s", with.authority())
            })?
            .map_err(|error| format!("TLS with {}: {}", with.authority(), tls_reason(&error)))?;
        let protocol = match stream.get_ref().1.alpn_protocol() {
            Some(b"h2") => Protocol::Http2,
            _ => Protocol::Http1,
        };
        Ok((Box::new(stream), protocol))
    }

    /// A stream that a proxy passes on. A proxy that speaks TLS is trusted like the server, as in Go.
    async fn through(&self, proxy: &Url, tls: Option<&Arc<ClientConfig>>) -> Result<Box<dyn Io>, String> {
        let mut stream: Box<dyn Io> = Box::new(self.tcp(proxy).await?);
        if proxy.is_https() {
            let Some(config) = tls else {
                return Err(format!(
                    "the proxy {proxy} wants TLS, and the server is not asked for any"
                ));
            };
            let mut config = ClientConfig::clone(config);
            config.alpn_protocols.clear();
            let name = ServerName::try_from(proxy.host.clone()).map_err(|error| error.to_string())?;
            stream = self.handshake(stream, Arc::new(config), name, proxy).await?.0;
        }
        if self.is_forwarded() {
            return Ok(stream);
        }
        let asked = async {
            match proxy.scheme.as_str() {
                "socks5" | "socks5h" => socks(&mut stream, &self.server, proxy.user.as_ref()).await,
                _ => tunnel(&mut stream, &self.server, proxy.user.as_ref()).await,
            }
        };
        timeout(self.handshake_timeout, asked)
            .await
            .map_err(|_| format!("no answer from the proxy {proxy}"))?
            .map_err(|reason| format!("the proxy {proxy}: {reason}"))?;
        Ok(stream)
    }
}

/// The first address that answers; each has a head start on the next.
async fn race(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut attempts: FuturesUnordered<_> = (0..)
        .zip(addresses)
        .map(|(place, address)| async move {
            sleep(FALLBACK_DELAY * place).await;
            TcpStream::connect(address).await
        })
        .collect();
    let mut failure = io::Error::other("the name has no address");
    while let Some(attempt) = attempts.next().await {
        match attempt {
            Ok(stream) => return Ok(stream),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// So that a connection that is dead is noticed even where nothing is to be sent.
fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_TIME)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_RETRIES);
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED_TIMEOUT))
}

/// Our own words where we refused, the library's where it did.
fn tls_reason(error: &io::Error) -> String {
    let inner = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match inner {
        Some(rustls::Error::InvalidCertificate(rustls::CertificateError::Other(other))) => {
            match other.0.downcast_ref::<Untrusted>() {
                Some(untrusted) => untrusted.to_string(),
                None => other.0.to_string(),
            }
        }
        Some(other) => other.to_string(),
        None => error.to_string(),
    }
}

/// What a proxy wants to see of whoever the URL names.
pub(super) fn proxy_authorization(user: &UserInfo) -> String {
    let text = format!("{}:{}", user.name.expose(), user.password.expose());
    format!("Basic {}", BASE64.encode(text.as_bytes()))
}

/// Asks an HTTP proxy for a tunnel.
async fn tunnel(stream: &mut Box<dyn Io>, to: &Url, user: Option<&UserInfo>) -> Result<(), String> {
    let place = place(to);
    let authorization = user.map_or_else(String::new, |user| {
        format!("Proxy-Authorization: {}\r\n", proxy_authorization(user))
    });
    let request = format!("CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n{authorization}\r\n");
    stream
        .write_all(request.as_bytes())
        .await
        .map_err(|error| error.to_string())?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() >= MAX_PROXY_ANSWER {
            return Err("its answer is too long".into());
        }
        // One byte at a time, so that nothing is taken of what follows; it is done once per connection.
        head.push(stream.read_u8().await.map_err(|error| error.to_string())?);
    }
    let line = String::from_utf8_lossy(&head);
    let line = line.lines().next().unwrap_or_default();
    match line.split(' ').nth(1) {
        Some(code) if code.starts_with('2') && line.starts_with("HTTP/1.") => Ok(()),
        _ => {
            let shown: String = line.chars().filter(|c| !c.is_control()).take(80).collect();
            Err(format!("it answered {shown:?}"))
        }
    }
}

/// Host and port, both always given.
fn place(to: &Url) -> String {
    Url {
        port: Some(to.port_or_default()),
        ..to.clone()
    }
    .authority()
}

/// SOCKS 5 (RFC 1928, 1929); the proxy looks up names.
async fn socks(stream: &mut Box<dyn Io>, to: &Url, user: Option<&UserInfo>) -> Result<(), String> {
    const PASSWORD: u8 = 2;
    let failed = |error: io::Error| error.to_string();
    let methods: &[u8] = if user.is_some() {
        &[5, 2, 0, PASSWORD]
    } else {
        &[5, 1, 0]
    };
    stream.write_all(methods).await.map_err(failed)?;
    let mut choice = [0; 2];
    stream.read_exact(&mut choice).await.map_err(failed)?;
    match (choice, user) {
        ([5, 0], _) => {}
        ([5, PASSWORD], Some(user)) => {
            let mut message = vec![1];
            for text in [user.name.expose(), user.password.expose()] {
                message.push(u8::try_from(text.len()).map_err(|_| "the name or password is too long")?);
                message.extend_from_slice(text.as_bytes());
            }
            stream.write_all(&message).await.map_err(failed)?;
            let mut verdict = [0; 2];
            stream.read_exact(&mut verdict).await.map_err(failed)?;
            if verdict[1] != 0 {
                return Err("it refused the name and password".into());
            }
        }
        ([5, _], _) => return Err("it wants to be authenticated to in another way".into()),
        _ => return Err("it does not speak SOCKS 5".into()),
    }
    let mut request = vec![5, 1, 0];
    match to.host.parse() {
        Ok(std::net::IpAddr::V4(address)) => {
            request.push(1);
            request.extend(address.octets());
        }
        Ok(std::net::IpAddr::V6(address)) => {
            request.push(4);
            request.extend(address.octets());
        }
        Err(_) => {
            request.push(3);
            request.push(u8::try_from(to.host.len()).map_err(|_| "the server's name is too long")?);
            request.extend_from_slice(to.host.as_bytes());
        }
    }
    request.extend(to.port_or_default().to_be_bytes());
    stream.write_all(&request).await.map_err(failed)?;
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).await.map_err(failed)?;
    if answer[1] != 0 {
        return Err(format!("it cannot reach the server (code {})", answer[1]));
    }
    // The address it uses, which is of no interest.
    let rest = match answer[3] {
        1 => 4,
        4 => 16,
        3 => usize::from(stream.read_u8().await.map_err(failed)?),
        _ => return Err("it does not speak SOCKS 5".into()),
    };
    let mut address = vec![0; rest + 2];
    stream.read_exact(&mut address).await.map(drop).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn dead_connections_are_noticed_by_the_kernel() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = race(&[listener.local_addr().unwrap()]).await.unwrap();
        prepare(&stream).unwrap();
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().unwrap() && socket.tcp_nodelay().unwrap());
        let silence = socket.tcp_keepalive_time().unwrap()
            + socket.tcp_keepalive_interval().unwrap() * socket.tcp_keepalive_retries().unwrap();
        assert!(silence <= Duration::from_secs(45), "{silence:?}");
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(UNACKNOWLEDGED_TIMEOUT));
    }

    #[tokio::test]
    async fn an_address_that_answers_wins() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let good = listener.local_addr().unwrap();
        let dead = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .unwrap()
            .local_addr()
            .unwrap();
        assert_eq!(race(&[dead, good]).await.unwrap().peer_addr().unwrap(), good);
        assert_eq!(
            race(&[dead]).await.unwrap_err().kind(),
            io::ErrorKind::ConnectionRefused
        );
        assert!(race(&[]).await.unwrap_err().to_string().contains("no address"));
    }
}
