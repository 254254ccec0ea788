//! TLS: whom to trust and what to present, read anew for each connection.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use rustls::client::ResolvesClientCert;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs1KeyDer, PrivatePkcs8KeyDer, PrivateSec1KeyDer, ServerName,
    UnixTime,
};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, OtherError, PeerIncompatible,
    SignatureScheme,
};

use super::kubeconfig::{Refused, refused};
use super::pem;
use super::secret::Secret;
use super::settings::{self, Settings, Source, Trust};
use super::x509::{self, Certificate, Distrust, HANDSHAKE_SCHEMES, Version};

/// Where Linux distributions keep the authorities they trust: the first file that is there, as in Go.
const SYSTEM_FILES: [&str; 6] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/cacert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The certificates that are trusted by themselves.
type Roots = Arc<[Vec<u8>]>;

/// How TLS is to be spoken with one server.
#[derive(Debug)]
pub(super) struct Tls {
    trust: Trust,
    certificate: Option<(Source, Source)>,
    /// The name that the server's certificate must have.
    name: String,
    server_name: ServerName<'static>,
    /// The machine's authorities are read once, as in Go.
    system: OnceLock<Roots>,
}

/// What a connection is made with, and the bytes that it came from.
#[derive(Debug)]
pub(super) struct Material {
    pub(super) config: Arc<ClientConfig>,
    inputs: Vec<Vec<u8>>,
}

impl Material {
    /// Whether a connection made with the other would be the same.
    pub(super) fn is_same(&self, other: &Material) -> bool {
        self.inputs == other.inputs
    }
}

impl Tls {
    pub(super) fn new(settings: &Settings) -> Result<Tls, String> {
        let name = settings
            .server_name
            .clone()
            .unwrap_or_else(|| settings.server.host.clone());
        let server_name =
            ServerName::try_from(name.clone()).map_err(|_| format!("{name:?} is no name of a server"))?;
        Ok(Tls {
            trust: settings.trust.clone(),
            certificate: settings.user.certificate.clone(),
            name,
            server_name,
            system: OnceLock::new(),
        })
    }

    pub(super) fn server_name(&self) -> ServerName<'static> {
        self.server_name.clone()
    }

    /// Whether anything of it can change behind our back.
    pub(super) fn has_files(&self) -> bool {
        let file = |source: &Source| matches!(source, Source::File(_));
        matches!(&self.trust, Trust::Authority(source) if file(source))
            || self
                .certificate
                .as_ref()
                .is_some_and(|(certificate, key)| file(certificate) || file(key))
    }

    /// Reads what there is to read. A certificate that a plugin issued is used where none is configured.
    pub(super) fn load(&self, issued: Option<&(Secret, Secret)>) -> Result<Material, String> {
        let mut inputs = Vec::new();
        let roots = match &self.trust {
            Trust::Anyone => None,
            Trust::System => Some(Arc::clone(self.system.get_or_init(system_roots))),
            Trust::Authority(source) => {
                let bytes = source.read()?;
                let roots = certificates(&bytes);
                if roots.is_empty() {
                    return Err(format!(
                        "{} holds no certificate that can be read",
                        source.name("certificate-authority")
                    ));
                }
                inputs.push(bytes);
                Some(roots.into())
            }
        };
        let key = match (&self.certificate, issued) {
            (Some((certificate, key)), _) => {
                let (name, bytes, key) = (
                    certificate.name("client-certificate"),
                    certificate.read()?,
                    key.read()?,
                );
                let pair = key_pair(&bytes, &key).map_err(|reason| format!("{name}: {reason}"))?;
                inputs.extend([bytes, key]);
                Some(pair)
            }
            (None, Some((certificate, key))) => {
                let (bytes, key) = (certificate.expose().as_bytes(), key.expose().as_bytes());
                let pair =
                    key_pair(bytes, key).map_err(|reason| format!("the plugin's certificate: {reason}"))?;
                inputs.extend([bytes.to_vec(), key.to_vec()]);
                Some(pair)
            }
            (None, None) => None,
        };
        let verifier = Verifier {
            roots,
            name: self.name.clone(),
        };
        let config = client_config(verifier, key).map_err(|error| error.to_string())?;
        Ok(Material {
            config: Arc::new(config),
            inputs,
        })
    }
}

fn client_config(verifier: Verifier, key: Option<CertifiedKey>) -> Result<ClientConfig, Error> {
    let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let mut config = match key {
        Some(key) => builder.with_client_cert_resolver(Arc::new(Always(Arc::new(key)))),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    // Each connection is to see the server's certificate as it is now.
    config.resumption = rustls::client::Resumption::disabled();
    Ok(config)
}

/// The certificates of a PEM text that can be read.
fn certificates(text: &[u8]) -> Vec<Vec<u8>> {
    pem::blocks(text)
        .into_iter()
        .filter(|block| block.label == "CERTIFICATE" && Certificate::read(&block.der).is_some())
        .map(|block| block.der)
        .collect()
}

/// Whether a file holds a certificate that can be read.
pub(super) fn holds_certificates(path: &Path) -> Result<(), String> {
    match of_file(path) {
        Some(found) if !found.is_empty() => Ok(()),
        Some(_) => Err(format!(
            "{} holds no certificate that can be read",
            path.display()
        )),
        None => Err(format!("cannot read {}", path.display())),
    }
}

/// Whether the certificates and keys that stand in a kubeconfig itself can be used; files are left alone.
pub(in super::super) fn check_inline(settings: &Settings) -> Result<(), Refused> {
    let is_file = |source: &Source| matches!(source, Source::File(_));
    let pair = settings.user.certificate.as_ref();
    let files = matches!(&settings.trust, Trust::Authority(source) if is_file(source))
        || pair.is_some_and(|(certificate, key)| is_file(certificate) || is_file(key));
    if files || !settings.server.is_https() || settings.trust == Trust::System {
        return Ok(());
    }
    let loaded = Tls::new(settings).and_then(|tls| tls.load(None));
    loaded.map(drop).or_else(|reason| refused("certificates", reason))
}

fn system_roots() -> Roots {
    let mut roots = match std::env::var_os("SSL_CERT_FILE") {
        Some(file) => of_file(Path::new(&file)).unwrap_or_default(),
        None => SYSTEM_FILES
            .iter()
            .find_map(|file| of_file(Path::new(file)))
            .unwrap_or_default(),
    };
    if let Some(directories) = std::env::var_os("SSL_CERT_DIR") {
        for directory in std::env::split_paths(&directories) {
            let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
            roots.extend(entries.filter_map(|entry| of_file(&entry.path())).flatten());
        }
    }
    roots.into()
}

fn of_file(path: &Path) -> Option<Vec<Vec<u8>>> {
    settings::read(path).ok().map(|text| certificates(&text))
}

/// When the first certificate of a PEM text begins and ends to be valid.
pub(super) fn validity(text: &[u8]) -> Option<(SystemTime, SystemTime)> {
    let leaf = certificates(text).into_iter().next()?;
    let leaf = Certificate::read(&leaf)?;
    let time =
        |seconds| SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(u64::try_from(seconds).ok()?));
    time(leaf.not_before).zip(time(leaf.not_after))
}

/// A client's certificates with their key, which must belong to the first.
fn key_pair(certificate: &[u8], key: &[u8]) -> Result<CertifiedKey, String> {
    let chain: Vec<CertificateDer<'static>> = pem::blocks(certificate)
        .into_iter()
        .filter(|block| block.label == "CERTIFICATE")
        .map(|block| CertificateDer::from(block.der))
        .collect();
    let leaf = chain.first().ok_or("it holds no certificate")?;
    let leaf = Certificate::read(leaf).ok_or("its certificate cannot be read")?;
    let key = private_key(key).ok_or("its client-key holds no private key that can be read")?;
    let key = aws_lc_rs::sign::any_supported_type(&key)
        .map_err(|_| "its client-key is of a kind or length that is not supported")?;
    if key
        .public_key()
        .is_some_and(|public| public.as_ref() != leaf.public_key_info)
    {
        return Err("its client-key belongs to another certificate".into());
    }
    Ok(CertifiedKey::new(chain, key))
}

fn private_key(text: &[u8]) -> Option<PrivateKeyDer<'static>> {
    pem::blocks(text)
        .into_iter()
        .find_map(|block| match block.label.as_str() {
            "PRIVATE KEY" => Some(PrivatePkcs8KeyDer::from(block.der).into()),
            "RSA PRIVATE KEY" => Some(PrivatePkcs1KeyDer::from(block.der).into()),
            "EC PRIVATE KEY" => Some(PrivateSec1KeyDer::from(block.der).into()),
            _ => None,
        })
}

/// Presents one certificate whoever asks, as Go does: the server knows best whether it accepts it.
#[derive(Debug)]
struct Always(Arc<CertifiedKey>);

impl ResolvesClientCert for Always {
    fn resolve(&self, _issuers: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// Judges servers by the rules of `x509`.
#[derive(Debug)]
struct Verifier {
    /// `None` trusts anyone.
    roots: Option<Roots>,
    name: String,
}

/// Why a server is not trusted, in words.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Untrusted(String);

impl Verifier {
    fn judge(&self, leaf: &[u8], others: &[CertificateDer<'_>], now: UnixTime) -> Result<(), String> {
        let leaf = Certificate::read(leaf).ok_or_else(|| Distrust::Unreadable.to_string())?;
        let Some(roots) = &self.roots else {
            return Ok(());
        };
        let others: Vec<Certificate<'_>> = others.iter().filter_map(|der| Certificate::read(der)).collect();
        let roots: Vec<Certificate<'_>> = roots.iter().filter_map(|der| Certificate::read(der)).collect();
        let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        x509::verify(&leaf, &others, &roots, &self.name, now).map_err(|distrust| match distrust {
            Distrust::WrongHost => format!(
                "{distrust}: it is for {}, not for {}",
                leaf.names_in_words(),
                self.name
            ),
            other => other.to_string(),
        })
    }

    fn handshake(
        version: Version,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let certificate = Certificate::read(certificate).ok_or(CertificateError::BadEncoding)?;
        if x509::verify_handshake(&certificate, version, signed.scheme, message, signed.signature()) {
            Ok(HandshakeSignatureValid::assertion())
        } else if HANDSHAKE_SCHEMES.contains(&signed.scheme) {
            Err(CertificateError::BadSignature.into())
        } else {
            Err(PeerIncompatible::NoSignatureSchemesInCommon.into())
        }
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.judge(end_entity, intermediates, now)
            .map(|()| ServerCertVerified::assertion())
            .map_err(|reason| CertificateError::Other(OtherError(Arc::new(Untrusted(reason)))).into())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Verifier::handshake(Version::Tls12, message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Verifier::handshake(Version::Tls13, message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        HANDSHAKE_SCHEMES.to_vec()
    }
}
