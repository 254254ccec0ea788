//! The test lab: what tests need around the product, and nothing of the product itself.
//!
//! [`api`] is a small Kubernetes API server, [`oracle`] has what kube-proxy did to packets, and [`netns`] has
//! hosts made of network namespaces, with servers and probes that send real packets. It may touch namespaces
//! that it made itself and nothing else of the machine; they go when their value is dropped.

pub mod api;
pub mod netns;
pub mod oracle;

use std::time::Duration;

/// Whether this is an emulated machine, by `FERRY_LAB_SLOW`.
pub fn is_slow() -> bool {
    factor() > 1.0
}

/// Every wait and time-out of the lab, made longer by `FERRY_LAB_SLOW` (a factor) for emulated machines.
pub fn patience(base: Duration) -> Duration {
    base.mul_f64(factor())
}

/// How long something may take that ends as soon as it has happened: an emulated machine that shares its processor with
/// others is given more than it is made to spend on silence.
pub fn at_most(base: Duration) -> Duration {
    patience(if is_slow() { base * 3 } else { base })
}

fn factor() -> f64 {
    static FACTOR: std::sync::OnceLock<f64> = std::sync::OnceLock::new();
    *FACTOR.get_or_init(|| {
        let asked = std::env::var("FERRY_LAB_SLOW").ok().and_then(|f| f.parse().ok());
        asked.filter(|f: &f64| f.is_finite() && *f >= 1.0).unwrap_or(1.0)
    })
}

/// Asks until the answer is yes; `false` when it did not come in time.
pub fn wait_until(limit: Duration, mut yes: impl FnMut() -> bool) -> bool {
    let end = std::time::Instant::now() + patience(limit);
    loop {
        if yes() {
            return true;
        }
        if std::time::Instant::now() >= end {
            return false;
        }
        std::thread::sleep(patience(Duration::from_millis(20)));
    }
}
