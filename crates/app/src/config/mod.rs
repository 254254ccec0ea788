//! Configuration: flags and `KubeProxyConfiguration` files in, one checked [`Settings`] out.
//! It reads the configuration file and nothing else of the world.
//! What always holds: a [`Settings`] value exists only if the whole configuration was valid.

mod settings;

pub use settings::{
    ApiClient, Conntrack, DetectLocal, Iptables, Ipvs, Mode, Nftables, NodePortAddresses, PortRange,
    Settings, Source, Userspace,
};
