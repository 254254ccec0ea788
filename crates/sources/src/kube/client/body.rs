//! The body of an answer, unpacked as it arrives.

use std::io::Write;
use std::sync::Arc;

use bytes::Bytes;
use flate2::write::GzDecoder;
use http_body_util::BodyExt;
use hyper::body::Incoming;

use super::super::requests::{Measure, Requests};
use super::connections::Lease;

/// How much is unpacked at once: what is packed tightest grows a thousandfold.
const UNPACKED_AT_ONCE: usize = 4 << 10;

/// An answer's body. What was not waited for is not lost.
#[derive(Debug)]
pub struct Body {
    incoming: Incoming,
    gzip: Option<Gunzip>,
    meter: Option<Meter>,
    lease: Option<Lease>,
}

#[derive(Debug)]
struct Gunzip {
    decoder: GzDecoder<Vec<u8>>,
    packed: Bytes,
}

/// Tells how long a body was once it has ended.
#[derive(Debug)]
pub(super) struct Meter {
    pub(super) requests: Arc<Requests>,
    pub(super) method: String,
    pub(super) bytes: u64,
}

impl Body {
    pub(super) fn new(
        incoming: Incoming,
        packed: Packed,
        meter: Option<Meter>,
        lease: Option<Lease>,
    ) -> Self {
        let gzip = (packed == Packed::Gzip).then(|| Gunzip {
            decoder: GzDecoder::new(Vec::new()),
            packed: Bytes::new(),
        });
        Body {
            incoming,
            gzip,
            meter,
            lease,
        }
    }

    /// The next bytes; `None` at the end.
    pub async fn next(&mut self) -> Option<Result<Bytes, String>> {
        let next = self.unpacked().await;
        match &next {
            Some(Ok(data)) => {
                if let Some(meter) = &mut self.meter {
                    meter.bytes += data.len() as u64;
                }
            }
            Some(Err(_)) => self.meter = None,
            None => {
                if let Some(meter) = self.meter.take() {
                    let Meter {
                        requests,
                        method,
                        bytes,
                    } = meter;
                    requests.note_measure(Measure::ResponseSize, &method, bytes as f64);
                }
            }
        }
        if next.is_none()
            && let Some(lease) = self.lease.take()
        {
            lease.end().await;
        }
        next
    }

    async fn unpacked(&mut self) -> Option<Result<Bytes, String>> {
        loop {
            if let Some(gzip) = &mut self.gzip {
                match gzip.unpack() {
                    Ok(None) => {}
                    done => return done.transpose(),
                }
            }
            let data = match self.incoming.frame().await {
                None => return None,
                Some(Err(error)) => return Some(Err(super::describe(&error))),
                // Trailers say nothing that is used.
                Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
            };
            match &mut self.gzip {
                Some(gzip) => gzip.packed = data,
                None if data.is_empty() => {}
                None => return Some(Ok(data)),
            }
        }
    }
}

/// How a body is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packed {
    Not,
    Gzip,
}

impl Gunzip {
    /// Some of what is there, or `None` where more must come first.
    fn unpack(&mut self) -> Result<Option<Bytes>, String> {
        while !self.packed.is_empty() {
            let piece = self.packed.split_to(self.packed.len().min(UNPACKED_AT_ONCE));
            self.decoder
                .write_all(&piece)
                .and_then(|()| self.decoder.flush())
                .map_err(|error| format!("it is not packed as it says: {error}"))?;
            let unpacked = std::mem::take(self.decoder.get_mut());
            if !unpacked.is_empty() {
                return Ok(Some(unpacked.into()));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_bytes_are_unpacked_piece_by_piece() {
        let text: Vec<u8> = (0..2_000_000_u32).map(|n| (n % 7) as u8).collect();
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(&text).unwrap();
        let packed = encoder.finish().unwrap();
        let mut gunzip = Gunzip {
            decoder: GzDecoder::new(Vec::new()),
            packed: Bytes::new(),
        };
        let mut found = Vec::new();
        for piece in packed.chunks(1000) {
            gunzip.packed = Bytes::copy_from_slice(piece);
            while let Some(data) = gunzip.unpack().unwrap() {
                assert!(data.len() < 5 << 20);
                found.extend_from_slice(&data);
            }
        }
        assert!(found == text);
        gunzip.decoder = GzDecoder::new(Vec::new());
        gunzip.packed = Bytes::from_static(b"this is no gzip at all");
        assert!(gunzip.unpack().unwrap_err().contains("not packed as it says"));
    }
}
