//! Go's and Kubernetes' textual values: numbers, durations, quantities, addresses, comma-separated lists, names.
//! Pure. What always holds: texts are read and refused as kube-proxy reads and refuses them, with its messages.

mod duration;
mod net;
mod number;
mod quantity;
mod text;
mod word;

pub use duration::GoDuration;
pub use net::{append_port, host_port_error, ip_error, parse_cidr, parse_ip, split_host_port};
pub use number::{format_f32, parse_bool, parse_f32, parse_i32, parse_u31};
pub use quantity::Quantity;
pub use text::{aggregate, format_list, parse_list, quote};
pub use word::{Choice, Named, Word};
