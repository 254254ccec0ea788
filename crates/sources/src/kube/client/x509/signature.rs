//! Signatures: of certificates, and of a handshake by the key of one.

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1, ECDSA_P256_SHA384_ASN1, ECDSA_P256_SHA512_ASN1, ECDSA_P384_SHA256_ASN1,
    ECDSA_P384_SHA384_ASN1, ECDSA_P384_SHA512_ASN1, ECDSA_P521_SHA256_ASN1, ECDSA_P521_SHA384_ASN1,
    ECDSA_P521_SHA512_ASN1, ED25519, RSA_PKCS1_1024_8192_SHA256_FOR_LEGACY_USE_ONLY,
    RSA_PKCS1_1024_8192_SHA512_FOR_LEGACY_USE_ONLY, RSA_PKCS1_2048_8192_SHA384, RSA_PSS_2048_8192_SHA256,
    RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512, UnparsedPublicKey, VerificationAlgorithm,
};
use rustls::SignatureScheme;

use super::certificate::{Algorithm, Certificate};
use super::der::{OBJECT_IDENTIFIER, Reader, constructed};
use super::pss;

/// SHA-1 and older are not among them: they sign nothing any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hash {
    Sha256,
    Sha384,
    Sha512,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Curve {
    P256,
    P384,
    P521,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    Rsa,
    Ec(Curve),
    Ed25519,
}

/// How a signature was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheme {
    Pkcs1(Hash),
    Pss(Hash),
    Ecdsa(Hash),
    Ed25519,
}

/// The contents of the identifiers that are compared with.
mod oid {
    /// 1.2.840.113549.1.1, below which the RSA algorithms are numbered.
    pub(super) const RSA: [u8; 8] = [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01];
    pub(super) const EC_KEY: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
    /// ecdsa-with-SHA2, below which the hashes are numbered.
    pub(super) const ECDSA_SHA2: [u8; 7] = [0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03];
    pub(super) const P256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
    pub(super) const P384: &[u8] = &[0x2b, 0x81, 0x04, 0x00, 0x22];
    pub(super) const P521: &[u8] = &[0x2b, 0x81, 0x04, 0x00, 0x23];
    pub(super) const ED25519: &[u8] = &[0x2b, 0x65, 0x70];
    /// 2.16.840.1.101.3.4.2, below which the SHA-2 hashes are numbered.
    pub(super) const SHA2: [u8; 8] = [0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02];
}

impl Certificate<'_> {
    /// Whether the signature of `other` was made with this certificate's key.
    pub(super) fn has_signed(&self, other: &Certificate<'_>) -> bool {
        scheme_of(&other.signature_algorithm)
            .is_some_and(|scheme| self.verifies(scheme, other.signed, other.signature))
    }

    fn verifies(&self, scheme: Scheme, message: &[u8], signature: &[u8]) -> bool {
        let algorithm: &'static dyn VerificationAlgorithm = match (key_of(&self.key_algorithm), scheme) {
            (Some(Key::Rsa), Scheme::Pss(hash)) if pss::is_short(self.key) => {
                return pss::verify(self.key, hash, message, signature);
            }
            (Some(Key::Rsa), Scheme::Pss(Hash::Sha256)) => &RSA_PSS_2048_8192_SHA256,
            (Some(Key::Rsa), Scheme::Pss(Hash::Sha384)) => &RSA_PSS_2048_8192_SHA384,
            (Some(Key::Rsa), Scheme::Pss(Hash::Sha512)) => &RSA_PSS_2048_8192_SHA512,
            (Some(Key::Rsa), Scheme::Pkcs1(Hash::Sha256)) => &RSA_PKCS1_1024_8192_SHA256_FOR_LEGACY_USE_ONLY,
            (Some(Key::Rsa), Scheme::Pkcs1(Hash::Sha384)) => &RSA_PKCS1_2048_8192_SHA384,
            (Some(Key::Rsa), Scheme::Pkcs1(Hash::Sha512)) => &RSA_PKCS1_1024_8192_SHA512_FOR_LEGACY_USE_ONLY,
            (Some(Key::Ec(curve)), Scheme::Ecdsa(hash)) => ecdsa(curve, hash),
            (Some(Key::Ed25519), Scheme::Ed25519) => &ED25519,
            _ => return false,
        };
        UnparsedPublicKey::new(algorithm, self.key)
            .verify(message, signature)
            .is_ok()
    }
}

fn ecdsa(curve: Curve, hash: Hash) -> &'static dyn VerificationAlgorithm {
    match (curve, hash) {
        (Curve::P256, Hash::Sha256) => &ECDSA_P256_SHA256_ASN1,
        (Curve::P256, Hash::Sha384) => &ECDSA_P256_SHA384_ASN1,
        (Curve::P256, Hash::Sha512) => &ECDSA_P256_SHA512_ASN1,
        (Curve::P384, Hash::Sha256) => &ECDSA_P384_SHA256_ASN1,
        (Curve::P384, Hash::Sha384) => &ECDSA_P384_SHA384_ASN1,
        (Curve::P384, Hash::Sha512) => &ECDSA_P384_SHA512_ASN1,
        (Curve::P521, Hash::Sha256) => &ECDSA_P521_SHA256_ASN1,
        (Curve::P521, Hash::Sha384) => &ECDSA_P521_SHA384_ASN1,
        (Curve::P521, Hash::Sha512) => &ECDSA_P521_SHA512_ASN1,
    }
}

fn key_of(algorithm: &Algorithm<'_>) -> Option<Key> {
    match algorithm.oid {
        oid::ED25519 => Some(Key::Ed25519),
        oid::EC_KEY => match Reader::new(algorithm.parameters).take(OBJECT_IDENTIFIER)? {
            oid::P256 => Some(Key::Ec(Curve::P256)),
            oid::P384 => Some(Key::Ec(Curve::P384)),
            oid::P521 => Some(Key::Ec(Curve::P521)),
            _ => None,
        },
        rsa => (rsa.strip_prefix(&oid::RSA)? == [1]).then_some(Key::Rsa),
    }
}

fn scheme_of(algorithm: &Algorithm<'_>) -> Option<Scheme> {
    let hash = |number: &[u8], first: u8| match *number {
        [number] if number == first => Some(Hash::Sha256),
        [number] if number == first + 1 => Some(Hash::Sha384),
        [number] if number == first + 2 => Some(Hash::Sha512),
        _ => None,
    };
    if algorithm.oid == oid::ED25519 {
        return Some(Scheme::Ed25519);
    }
    if let Some(number) = algorithm.oid.strip_prefix(&oid::ECDSA_SHA2) {
        return hash(number, 2).map(Scheme::Ecdsa);
    }
    match algorithm.oid.strip_prefix(&oid::RSA)? {
        // RSASSA-PSS says in its parameters which hash. The mask's is the same wherever the salt is as long as the
        // hash, which is checked with the signature.
        [10] => {
            let mut parameters = Reader::new(algorithm.parameters).sequence()?;
            let name = Algorithm::read(&mut Reader::new(parameters.take(constructed(0))?))?.oid;
            hash(name.strip_prefix(&oid::SHA2)?, 1).map(Scheme::Pss)
        }
        number => hash(number, 11).map(Scheme::Pkcs1),
    }
}

/// Which version of TLS a handshake speaks; the newer one binds a scheme to a curve and forbids PKCS #1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Version {
    Tls12,
    Tls13,
}

/// The schemes that a server may sign a handshake with.
pub(in super::super) const HANDSHAKE_SCHEMES: [SignatureScheme; 10] = [
    SignatureScheme::ECDSA_NISTP256_SHA256,
    SignatureScheme::ECDSA_NISTP384_SHA384,
    SignatureScheme::ECDSA_NISTP521_SHA512,
    SignatureScheme::ED25519,
    SignatureScheme::RSA_PSS_SHA256,
    SignatureScheme::RSA_PSS_SHA384,
    SignatureScheme::RSA_PSS_SHA512,
    SignatureScheme::RSA_PKCS1_SHA256,
    SignatureScheme::RSA_PKCS1_SHA384,
    SignatureScheme::RSA_PKCS1_SHA512,
];

/// Whether a handshake was signed with the key of a certificate.
pub(in super::super) fn verify_handshake(
    certificate: &Certificate<'_>,
    version: Version,
    scheme: SignatureScheme,
    message: &[u8],
    signature: &[u8],
) -> bool {
    let bound = |curve, hash| match version {
        Version::Tls12 => Some(Scheme::Ecdsa(hash)),
        Version::Tls13 => {
            (key_of(&certificate.key_algorithm) == Some(Key::Ec(curve))).then_some(Scheme::Ecdsa(hash))
        }
    };
    let old = |hash| (version == Version::Tls12).then_some(Scheme::Pkcs1(hash));
    let scheme = match scheme {
        SignatureScheme::ECDSA_NISTP256_SHA256 => bound(Curve::P256, Hash::Sha256),
        SignatureScheme::ECDSA_NISTP384_SHA384 => bound(Curve::P384, Hash::Sha384),
        SignatureScheme::ECDSA_NISTP521_SHA512 => bound(Curve::P521, Hash::Sha512),
        SignatureScheme::ED25519 => Some(Scheme::Ed25519),
        SignatureScheme::RSA_PSS_SHA256 => Some(Scheme::Pss(Hash::Sha256)),
        SignatureScheme::RSA_PSS_SHA384 => Some(Scheme::Pss(Hash::Sha384)),
        SignatureScheme::RSA_PSS_SHA512 => Some(Scheme::Pss(Hash::Sha512)),
        SignatureScheme::RSA_PKCS1_SHA256 => old(Hash::Sha256),
        SignatureScheme::RSA_PKCS1_SHA384 => old(Hash::Sha384),
        SignatureScheme::RSA_PKCS1_SHA512 => old(Hash::Sha512),
        _ => None,
    };
    scheme.is_some_and(|scheme| certificate.verifies(scheme, message, signature))
}
