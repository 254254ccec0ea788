//! From a server's certificate to one that is trusted.

use super::certificate::Certificate;

/// Bounds what a server can make us compute.
const MAX_SIGNATURE_CHECKS: usize = 100;

/// Why a certificate is not trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(in super::super) enum Distrust {
    #[error("the server's certificate cannot be read")]
    Unreadable,
    #[error("a certificate marks an extension as critical that is not understood")]
    UnknownCritical,
    #[error("a certificate has expired")]
    Expired,
    #[error("a certificate is not valid yet")]
    NotYet,
    #[error("the certificate is not for this host")]
    WrongHost,
    #[error("the certificate is signed by an unknown authority")]
    UnknownAuthority,
    #[error("the certificate of the authority does not let it sign certificates")]
    MayNotSign,
    #[error("a signature is wrong or made with an algorithm that is not supported")]
    BadSignature,
    #[error("the chain of certificates is longer than one of them allows")]
    TooLong,
    #[error("the certificate is not meant for servers")]
    WrongUsage,
    #[error("an authority of the chain may not vouch for this name")]
    ForbiddenName,
    #[error("the server's chain takes too many signature checks")]
    TooMuchWork,
}

/// Where in a chain a certificate stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Leaf,
    Intermediate,
    Root,
}

struct Search<'c, 'a> {
    roots: &'c [Certificate<'a>],
    intermediates: &'c [Certificate<'a>],
    now: i64,
    checks: usize,
    /// The first thing that was wrong with a certificate that could have signed.
    hint: Option<Distrust>,
}

/// Whether `leaf` speaks for `host` at `now` (seconds since 1970), by way of `intermediates`, to one of `roots`.
pub(in super::super) fn verify(
    leaf: &Certificate<'_>,
    intermediates: &[Certificate<'_>],
    roots: &[Certificate<'_>],
    host: &str,
    now: i64,
) -> Result<(), Distrust> {
    let mut search = Search {
        roots,
        intermediates,
        now,
        checks: 0,
        hint: None,
    };
    search.is_valid(leaf, Place::Leaf, &[])?;
    if !leaf.is_for(host) {
        return Err(Distrust::WrongHost);
    }
    // A certificate that is trusted by itself needs nobody to vouch for it.
    if roots.iter().any(|root| root.der == leaf.der) {
        return acceptable(&[leaf]);
    }
    search.climb(&[leaf])
}

impl<'c, 'a> Search<'c, 'a> {
    /// Looks for a chain that goes on from this one and ends at a root.
    fn climb(&mut self, chain: &[&'c Certificate<'a>]) -> Result<(), Distrust> {
        let Some(child) = chain.last() else {
            return Err(Distrust::Unreadable);
        };
        let mut parents: Vec<_> = (self.roots.iter().map(|root| (Place::Root, root)))
            .chain(
                self.intermediates
                    .iter()
                    .map(|other| (Place::Intermediate, other)),
            )
            .filter(|(_, candidate)| candidate.subject == child.issuer)
            .collect();
        // Roots first, and among them those whose key has the wanted name.
        parents.sort_by_key(|(place, parent)| (*place != Place::Root, key_id_distance(child, parent)));
        let mut failure = None;
        for (place, parent) in parents {
            self.checks += 1;
            if self.checks > MAX_SIGNATURE_CHECKS {
                return Err(Distrust::TooMuchWork);
            }
            if is_repeated(parent, chain) {
                continue;
            }
            if let Err(reason) = signed_by(child, parent).and_then(|()| self.is_valid(parent, place, chain)) {
                self.hint.get_or_insert(reason);
                continue;
            }
            let longer: Vec<_> = chain.iter().copied().chain([parent]).collect();
            let result = if place == Place::Root {
                acceptable(&longer)
            } else {
                self.climb(&longer)
            };
            match result {
                Ok(()) => return Ok(()),
                Err(Distrust::TooMuchWork) => return Err(Distrust::TooMuchWork),
                Err(reason) => failure = Some(reason),
            }
        }
        Err(failure
            .filter(|reason| *reason != Distrust::UnknownAuthority)
            .or(self.hint)
            .unwrap_or(Distrust::UnknownAuthority))
    }

    /// Whether a certificate is good by itself for its place above `below`.
    fn is_valid(
        &self,
        certificate: &Certificate<'_>,
        place: Place,
        below: &[&Certificate<'_>],
    ) -> Result<(), Distrust> {
        if certificate.demands_unknown {
            return Err(Distrust::UnknownCritical);
        }
        if self.now < certificate.not_before {
            return Err(Distrust::NotYet);
        }
        if self.now > certificate.not_after {
            return Err(Distrust::Expired);
        }
        if place == Place::Intermediate && !certificate.basic.is_some_and(|basic| basic.authority) {
            return Err(Distrust::MayNotSign);
        }
        let between = below.len().saturating_sub(1) as u64;
        let most = certificate.basic.and_then(|basic| basic.path_length);
        if place != Place::Leaf && most.is_some_and(|most| between > most) {
            return Err(Distrust::TooLong);
        }
        Ok(())
    }
}

/// How far the name that a child gives its issuer's key is from that of a parent's key.
fn key_id_distance(child: &Certificate<'_>, parent: &Certificate<'_>) -> u8 {
    let (wanted, given) = (child.authority_key_id, parent.subject_key_id);
    match (wanted == given, wanted.is_empty() || given.is_empty()) {
        (true, _) => 0,
        (false, true) => 1,
        (false, false) => 2,
    }
}

/// Whether a certificate of the same subject, key and names is in the chain already.
fn is_repeated(candidate: &Certificate<'_>, chain: &[&Certificate<'_>]) -> bool {
    chain.iter().any(|other| {
        other.subject == candidate.subject
            && other.public_key_info == candidate.public_key_info
            && other.names.whole == candidate.names.whole
    })
}

fn signed_by(child: &Certificate<'_>, parent: &Certificate<'_>) -> Result<(), Distrust> {
    if !parent.may_sign() {
        return Err(Distrust::MayNotSign);
    }
    if parent.has_signed(child) {
        Ok(())
    } else {
        Err(Distrust::BadSignature)
    }
}

/// What is asked of a chain as a whole: that it is for servers, and that each authority may name what is below it.
fn acceptable(chain: &[&Certificate<'_>]) -> Result<(), Distrust> {
    if !chain.iter().all(|certificate| certificate.may_serve()) {
        return Err(Distrust::WrongUsage);
    }
    for (at, authority) in chain.iter().enumerate() {
        let allowed = authority
            .constraints
            .as_ref()
            .is_none_or(|constraints| chain[..at].iter().all(|below| constraints.allow(below)));
        if !allowed {
            return Err(Distrust::ForbiddenName);
        }
    }
    Ok(())
}
