//! The daemon's HTTP servers: health, metrics and the per-service health-check node ports.
//! May bind sockets and read what the loop publishes; never touches the data plane.
//! A client that is slow, silent or one of too many can hold up only itself.

pub mod component;
pub mod connections;
pub mod health;
pub mod listen;
pub mod metrics;
pub mod serve;
pub mod service_health;

#[cfg(test)]
mod tests;
