//! One certificate, read.

use super::constraints::Constraints;
use super::der::{
    self, BIT_STRING, BOOLEAN, INTEGER, OBJECT_IDENTIFIER, OCTET_STRING, Reader, constructed, context, small,
    whole_bytes,
};

/// The last number of the extensions below 2.5.29 that are understood.
mod extension {
    pub(super) const SUBJECT_KEY_ID: u8 = 14;
    pub(super) const KEY_USAGE: u8 = 15;
    pub(super) const SUBJECT_ALTERNATIVE_NAME: u8 = 17;
    pub(super) const BASIC_CONSTRAINTS: u8 = 19;
    pub(super) const NAME_CONSTRAINTS: u8 = 30;
    pub(super) const CRL_DISTRIBUTION_POINTS: u8 = 31;
    pub(super) const CERTIFICATE_POLICIES: u8 = 32;
    pub(super) const AUTHORITY_KEY_ID: u8 = 35;
    pub(super) const EXTENDED_KEY_USAGE: u8 = 37;
}

/// 2.5.29, below which the extensions are numbered.
const EXTENSIONS: [u8; 2] = [0x55, 0x1d];
const ANY_USAGE: &[u8] = &[0x55, 0x1d, 0x25, 0x00];
const SERVER_AUTHENTICATION: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x01];
/// keyCertSign, counted from the most significant bit.
const MAY_SIGN: u8 = 0x80 >> 5;

/// A certificate; its pieces are those of the bytes it was read from.
#[derive(Debug, Default)]
pub(in super::super) struct Certificate<'a> {
    pub(super) der: &'a [u8],
    /// What is signed.
    pub(super) signed: &'a [u8],
    pub(super) signature_algorithm: Algorithm<'a>,
    pub(super) signature: &'a [u8],
    pub(super) version: u64,
    pub(super) issuer: &'a [u8],
    pub(super) subject: &'a [u8],
    pub(in super::super) not_before: i64,
    pub(in super::super) not_after: i64,
    /// The public key with its algorithm, as its own DER document.
    pub(in super::super) public_key_info: &'a [u8],
    pub(super) key_algorithm: Algorithm<'a>,
    pub(super) key: &'a [u8],
    pub(super) basic: Option<Basic>,
    /// The first byte of the key usages.
    key_usage: Option<u8>,
    extended_key_usage: Option<Vec<&'a [u8]>>,
    pub(super) names: Names<'a>,
    pub(super) constraints: Option<Constraints<'a>>,
    pub(super) subject_key_id: &'a [u8],
    pub(super) authority_key_id: &'a [u8],
    /// It demands something that is not understood here.
    pub(super) demands_unknown: bool,
}

/// An algorithm by the content of its identifier, and its parameters with tag and length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Algorithm<'a> {
    pub(super) oid: &'a [u8],
    pub(super) parameters: &'a [u8],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Basic {
    pub(super) authority: bool,
    pub(super) path_length: Option<u64>,
}

/// The subject's alternative names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Names<'a> {
    /// The extension as it stands.
    pub(super) whole: Option<&'a [u8]>,
    pub(super) dns: Vec<&'a str>,
    pub(super) addresses: Vec<&'a [u8]>,
    /// Mail addresses and URIs.
    pub(super) others: usize,
}

impl<'a> Algorithm<'a> {
    pub(super) fn read(reader: &mut Reader<'a>) -> Option<Self> {
        let mut algorithm = reader.sequence()?;
        let oid = algorithm.take(OBJECT_IDENTIFIER)?;
        let parameters = algorithm.any().map_or(&[][..], |parameters| parameters.whole);
        Some(Algorithm { oid, parameters })
    }
}

impl<'a> Certificate<'a> {
    /// `None` where it is no X.509 certificate.
    pub(in super::super) fn read(der: &'a [u8]) -> Option<Self> {
        let mut document = Reader::new(der);
        let mut outer = document.sequence()?;
        let signed = outer.optional(der::SEQUENCE)?;
        let signature_algorithm = Algorithm::read(&mut outer)?;
        let signature = whole_bytes(outer.take(BIT_STRING)?)?;
        if !document.is_empty() || !outer.is_empty() {
            return None;
        }
        let mut body = Reader::new(signed.content);
        let version = match body.take(constructed(0)) {
            Some(version) => small(Reader::new(version).take(INTEGER)?)? + 1,
            None => 1,
        };
        body.take(INTEGER)?;
        // The algorithm stands twice, and must be the same.
        if Algorithm::read(&mut body)? != signature_algorithm {
            return None;
        }
        let issuer = body.optional(der::SEQUENCE)?.whole;
        let mut validity = body.sequence()?;
        let (not_before, not_after) = (der::time(validity.any()?)?, der::time(validity.any()?)?);
        let subject = body.optional(der::SEQUENCE)?.whole;
        let public_key = body.optional(der::SEQUENCE)?;
        let mut key_info = Reader::new(public_key.content);
        let key_algorithm = Algorithm::read(&mut key_info)?;
        let key = whole_bytes(key_info.take(BIT_STRING)?)?;
        let mut certificate = Certificate {
            der,
            signed: signed.whole,
            signature_algorithm,
            signature,
            version,
            issuer,
            subject,
            not_before,
            not_after,
            public_key_info: public_key.whole,
            key_algorithm,
            key,
            ..Certificate::default()
        };
        body.optional(context(1));
        body.optional(context(2));
        if let Some(extensions) = body.take(constructed(3)) {
            let mut extensions = Reader::new(extensions).sequence()?;
            while !extensions.is_empty() {
                certificate.extension(extensions.sequence()?)?;
            }
        }
        Some(certificate)
    }

    fn extension(&mut self, mut extension: Reader<'a>) -> Option<()> {
        let oid = extension.take(OBJECT_IDENTIFIER)?;
        let critical = extension.take(BOOLEAN).is_some_and(|value| value != [0]);
        let value = extension.take(OCTET_STRING)?;
        let number = oid
            .strip_prefix(&EXTENSIONS)
            .and_then(|rest| <[u8; 1]>::try_from(rest).ok());
        let understood = match number {
            Some([number]) => self.standard_extension(number, value)?,
            None => false,
        };
        self.demands_unknown |= critical && !understood;
        Some(())
    }

    /// Whether it is understood; `None` where it is understood and malformed.
    fn standard_extension(&mut self, number: u8, value: &'a [u8]) -> Option<bool> {
        let mut value = Reader::new(value);
        match number {
            extension::SUBJECT_KEY_ID => self.subject_key_id = value.take(OCTET_STRING)?,
            extension::AUTHORITY_KEY_ID => {
                self.authority_key_id = value.sequence()?.take(context(0)).unwrap_or_default();
            }
            extension::KEY_USAGE => {
                let bits = value.take(BIT_STRING)?;
                self.key_usage = Some(bits.get(1).copied().unwrap_or_default());
            }
            extension::BASIC_CONSTRAINTS => {
                let mut basic = value.sequence()?;
                let authority = basic.take(BOOLEAN).is_some_and(|value| value != [0]);
                let path_length = match basic.take(INTEGER) {
                    Some(length) => Some(small(length)?),
                    None => None,
                };
                self.basic = Some(Basic {
                    authority,
                    path_length,
                });
            }
            extension::EXTENDED_KEY_USAGE => {
                let mut usages = value.sequence()?;
                let mut found = Vec::new();
                while !usages.is_empty() {
                    found.push(usages.take(OBJECT_IDENTIFIER)?);
                }
                self.extended_key_usage = Some(found);
            }
            extension::SUBJECT_ALTERNATIVE_NAME => {
                self.names = Names::read(value)?;
                return Some(!self.names.is_empty());
            }
            extension::NAME_CONSTRAINTS => {
                let constraints = Constraints::read(value.sequence()?)?;
                let understood = constraints.are_understood();
                self.constraints = Some(constraints);
                return Some(understood);
            }
            extension::CERTIFICATE_POLICIES | extension::CRL_DISTRIBUTION_POINTS => {}
            _ => return Some(false),
        }
        Some(true)
    }

    /// Whether its key may sign certificates.
    pub(super) fn may_sign(&self) -> bool {
        let authority = match self.basic {
            Some(basic) => basic.authority,
            None => self.version < 3,
        };
        // A usage without any bit says nothing, to Go.
        authority
            && self
                .key_usage
                .is_none_or(|usage| usage == 0 || usage & MAY_SIGN != 0)
    }

    /// Whether it may stand in the chain of a TLS server.
    pub(super) fn may_serve(&self) -> bool {
        self.extended_key_usage.as_deref().is_none_or(|usages| {
            usages.is_empty() || usages.contains(&ANY_USAGE) || usages.contains(&SERVER_AUTHENTICATION)
        })
    }
}

impl<'a> Names<'a> {
    fn read(mut value: Reader<'a>) -> Option<Self> {
        let whole = value.optional(der::SEQUENCE)?;
        let mut list = Reader::new(whole.content);
        let mut names = Names {
            whole: Some(whole.whole),
            ..Names::default()
        };
        const MAIL: u8 = context(1);
        const DNS: u8 = context(2);
        const URI: u8 = context(6);
        const ADDRESS: u8 = context(7);
        while !list.is_empty() {
            let name = list.any()?;
            match name.tag {
                DNS => names.dns.push(ascii(name.content)?),
                MAIL | URI => names.others += 1,
                ADDRESS if matches!(name.content.len(), 4 | 16) => names.addresses.push(name.content),
                ADDRESS => return None,
                _ => {}
            }
        }
        Some(names)
    }

    fn is_empty(&self) -> bool {
        self.dns.is_empty() && self.addresses.is_empty() && self.others == 0
    }
}

/// Names are written in ASCII, or not at all.
pub(super) fn ascii(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok().filter(|text| text.is_ascii())
}
