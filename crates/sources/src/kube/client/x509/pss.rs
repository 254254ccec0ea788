//! RSASSA-PSS (RFC 8017) with keys too short for the cryptography library: 1024 to 2047 bits, which Go accepts.
//! Verification handles nothing secret, so plain arithmetic will do.

use aws_lc_rs::digest::{self, Digest};

use super::der::{INTEGER, Reader, small};
use super::signature::Hash;

/// What the library verifies by itself.
const LONG: usize = 2048 / 8;
const SHORTEST: usize = 1024 / 8;

struct PublicKey<'a> {
    modulus: &'a [u8],
    exponent: u64,
}

impl<'a> PublicKey<'a> {
    fn read(der: &'a [u8]) -> Option<Self> {
        let mut key = Reader::new(der).sequence()?;
        let modulus = key.take(INTEGER)?;
        Some(PublicKey {
            modulus: modulus.strip_prefix(&[0]).unwrap_or(modulus),
            exponent: small(key.take(INTEGER)?)?,
        })
    }

    fn bits(&self) -> usize {
        let zeros = self
            .modulus
            .first()
            .map_or(0, |byte| byte.leading_zeros() as usize);
        self.modulus.len() * 8 - zeros
    }
}

/// Whether a key is a short one.
pub(super) fn is_short(key: &[u8]) -> bool {
    PublicKey::read(key).is_some_and(|key| key.modulus.len() < LONG)
}

pub(super) fn verify(key: &[u8], hash: Hash, message: &[u8], signature: &[u8]) -> bool {
    let Some(key) = PublicKey::read(key) else {
        return false;
    };
    let odd = key.modulus.last().is_some_and(|byte| byte % 2 == 1);
    let short = (SHORTEST..LONG).contains(&key.modulus.len());
    if !odd || !short || signature.len() != key.modulus.len() || signature >= key.modulus || key.exponent < 3
    {
        return false;
    }
    let encoded = power(signature, key.exponent, key.modulus);
    encodes(&encoded, key.bits() - 1, hash, message).is_some()
}

fn digest_of(hash: Hash, pieces: &[&[u8]]) -> Digest {
    let algorithm = match hash {
        Hash::Sha256 => &digest::SHA256,
        Hash::Sha384 => &digest::SHA384,
        Hash::Sha512 => &digest::SHA512,
    };
    let mut context = digest::Context::new(algorithm);
    pieces.iter().for_each(|piece| context.update(piece));
    context.finish()
}

/// EMSA-PSS-VERIFY with a salt as long as the hash.
fn encodes(encoded: &[u8], bits: usize, hash: Hash, message: &[u8]) -> Option<()> {
    let wanted = digest_of(hash, &[message]);
    let length = wanted.as_ref().len();
    let encoded = &encoded[encoded.len() - bits.div_ceil(8)..];
    let masked_length = encoded.len().checked_sub(length + 1)?;
    // Eight zeros less than whole bytes are to stand at the front.
    let first = 0xff_u8 >> (8 * encoded.len() - bits);
    let (masked, rest) = encoded.split_at(masked_length);
    let (seed, trailer) = rest.split_at(length);
    if trailer != [0xbc] || masked.first()? & !first != 0 || masked_length < length + 1 {
        return None;
    }
    let mut block: Vec<u8> = masked
        .iter()
        .zip(mask(hash, seed, masked_length))
        .map(|(byte, mask)| byte ^ mask)
        .collect();
    block[0] &= first;
    let (padding, salt) = block.split_at(masked_length - length);
    let (one, zeros) = padding.split_last()?;
    let padded = *one == 1 && zeros.iter().all(|byte| *byte == 0);
    let found = digest_of(hash, &[&[0; 8], wanted.as_ref(), salt]);
    (padded && found.as_ref() == seed).then_some(())
}

/// MGF1.
fn mask(hash: Hash, seed: &[u8], length: usize) -> Vec<u8> {
    let blocks = (0_u32..).map(|counter| digest_of(hash, &[seed, &counter.to_be_bytes()]));
    let mut mask = Vec::with_capacity(length + 64);
    for block in blocks {
        mask.extend_from_slice(block.as_ref());
        if mask.len() >= length {
            break;
        }
    }
    mask.truncate(length);
    mask
}

/// `base ^ exponent` modulo an odd number; all as big-endian bytes of one length.
fn power(base: &[u8], exponent: u64, modulus: &[u8]) -> Vec<u8> {
    let (base, modulus) = (limbs(base), limbs(modulus));
    let mut result = base.clone();
    let bits = 64 - exponent.leading_zeros();
    for bit in (0..bits.saturating_sub(1)).rev() {
        result = multiply(&result, &result, &modulus);
        if exponent >> bit & 1 == 1 {
            result = multiply(&result, &base, &modulus);
        }
    }
    result.iter().rev().flat_map(|limb| limb.to_be_bytes()).collect()
}

/// Little-endian limbs.
fn limbs(bytes: &[u8]) -> Vec<u32> {
    bytes
        .rchunks(4)
        .map(|chunk| chunk.iter().fold(0, |limb, byte| limb << 8 | u32::from(*byte)))
        .collect()
}

/// `a * b mod modulus`, by doubling and adding, from the most significant bit of `b` on.
fn multiply(a: &[u32], b: &[u32], modulus: &[u32]) -> Vec<u32> {
    let mut sum = vec![0; modulus.len()];
    for limb in b.iter().rev() {
        for bit in (0..32).rev() {
            let copy = sum.clone();
            add(&mut sum, &copy, modulus);
            if limb >> bit & 1 == 1 {
                add(&mut sum, a, modulus);
            }
        }
    }
    sum
}

/// `sum += other`, less the modulus where that is exceeded; both are below it.
fn add(sum: &mut [u32], other: &[u32], modulus: &[u32]) {
    let mut carry = 0;
    for (limb, other) in sum.iter_mut().zip(other) {
        let wide = u64::from(*limb) + u64::from(*other) + carry;
        *limb = wide as u32;
        carry = wide >> 32;
    }
    if carry == 1 || sum.iter().rev().ge(modulus.iter().rev()) {
        let mut borrow = 0;
        for (limb, modulus) in sum.iter_mut().zip(modulus) {
            let wide = i64::from(*limb) - i64::from(*modulus) + borrow;
            *limb = wide as u32;
            borrow = wide >> 32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_are_taken_modulo_a_number() {
        let seven = |exponent| power(&[0, 0, 0, 7], exponent, &[0, 0, 0x27, 0x0f]);
        assert_eq!(seven(3), [0, 0, 1, 0x57]);
        assert_eq!(seven(20), (7_u128.pow(20) % 9999).to_be_bytes()[12..]);
        let large = [0xff, 0xff, 0xff, 0xfb, 0xff, 0xff, 0xff, 0xfd];
        let modulus = u64::from_be_bytes(large);
        let base = (modulus - 2).to_be_bytes();
        // (-2)^3 = -8
        assert_eq!(power(&base, 3, &large), (modulus - 8).to_be_bytes());
    }
}
