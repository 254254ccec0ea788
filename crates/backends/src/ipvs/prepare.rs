//! What must hold before the first rule: modules, the scheduler, kernel parameters, timeouts.

use ferry_host::ipvs::{Change, Ipvs, Service, Timeouts, Virtual};
use ferry_host::modules::{Missing, Modules, kernel_version};
use ferry_host::sysctl::Sysctls;

use super::render::scheduler_flags;
use super::{Error, Options};

/// Opens IPVS. The kernel loads the module by itself where it can; else `modprobe` is asked, else a person.
pub(super) fn open() -> Result<Ipvs, Error> {
    if let Ok(ipvs) = Ipvs::open() {
        return Ok(ipvs);
    }
    Modules::default()
        .ensure("ip_vs")
        .map_err(Error::opening("use IPVS"))?;
    Ok(Ipvs::open()?)
}

/// Everything that is done once. Returns what a person should know.
pub(super) fn prepare(ipvs: &mut Ipvs, options: &Options) -> Result<Vec<String>, Error> {
    let mut warnings = Vec::new();
    probe_scheduler(ipvs, &options.scheduler)?;
    for (name, value) in sysctls(options.strict_arp, kernel_version(), &mut warnings) {
        Sysctls::default()
            .ensure(name, value)
            .map_err(|error| Error::opening("prepare the kernel for ipvs mode")(error).futile())?;
    }
    if options.timeouts != Timeouts::default()
        && let Err(error) = ipvs.set_timeouts(&options.timeouts)
    {
        warnings.push(error.to_string());
    }
    Ok(warnings)
}

/// The parameters, in kube-proxy's order.
fn sysctls(
    strict_arp: bool,
    kernel: Option<(u32, u32)>,
    warnings: &mut Vec<String>,
) -> Vec<(&'static str, i64)> {
    let mut all = vec![("net/ipv4/vs/conntrack", 1)];
    match kernel {
        // Reusing a port must not reach a server that is gone, and must not cost a second for each new connection:
        // kernels since 5.9 do both by themselves.
        Some(version) if version >= (5, 9) => {}
        Some(version) if version >= (4, 1) => all.push(("net/ipv4/vs/conn_reuse_mode", 0)),
        Some(_) | None => warnings.push(
            "net.ipv4.vs.conn_reuse_mode is left as it is: the kernel is older than 4.1, \
             and connections that reuse a port may be lost"
                .to_owned(),
        ),
    }
    all.push(("net/ipv4/vs/expire_nodest_conn", 1));
    all.push(("net/ipv4/vs/expire_quiescent_template", 1));
    all.push(("net/ipv4/ip_forward", 1));
    if strict_arp {
        all.push(("net/ipv4/conf/all/arp_ignore", 1));
        all.push(("net/ipv4/conf/all/arp_announce", 2));
    }
    all
}

/// Loads a scheduler's module, where that can be done from here. The kernel would do it by itself when a virtual server asks
/// for it, but under a lock that it also needs to remove a network namespace; a module with state in every namespace (lblc,
/// lblcr) waits for such a removal, and both wait for ever.
pub(super) fn load_scheduler(scheduler: &str) -> Result<(), Missing> {
    Modules::default().ensure(&format!("ip_vs_{scheduler}"))
}

/// Whether the kernel has the scheduler tells a virtual server: at an address of a documentation network, which nobody uses,
/// and for a moment only.
pub(super) fn probe_scheduler(ipvs: &mut Ipvs, scheduler: &str) -> Result<(), Error> {
    if ipvs
        .services()?
        .iter()
        .any(|service| service.scheduler == scheduler)
    {
        return Ok(());
    }
    let at = Virtual {
        address: [198, 51, 100, 0].into(),
        port: 20000,
        protocol: libc::IPPROTO_TCP as u8,
    };
    let service = Service {
        at,
        scheduler: scheduler.to_owned(),
        flags: scheduler_flags(scheduler),
        persistence: None,
    };
    let loaded = load_scheduler(scheduler);
    let changes = [Change::AddService(service), Change::RemoveService(at)];
    let refused = ipvs.run(&changes)?;
    let refused = refused.iter().find(|refused| refused.index == 0);
    let attempt = format!("use the IPVS scheduler {scheduler}");
    match (refused, loaded) {
        // The kernel may have what `modprobe` does not find.
        (None, _) => Ok(()),
        (Some(_), Err(missing)) => Err(Error::opening(attempt)(missing)),
        (Some(refused), Ok(())) => {
            let reason = std::io::Error::from_raw_os_error(refused.errno);
            Err(Error::opening(attempt)(reason).futile())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(strict_arp: bool, kernel: Option<(u32, u32)>) -> (Vec<(&'static str, i64)>, usize) {
        let mut warnings = Vec::new();
        (sysctls(strict_arp, kernel, &mut warnings), warnings.len())
    }

    #[test]
    fn conn_reuse_mode_depends_on_the_kernel() {
        let reuse = ("net/ipv4/vs/conn_reuse_mode", 0);
        for (kernel, set, warned) in [
            (Some((6, 1)), false, 0),
            (Some((5, 9)), false, 0),
            (Some((5, 8)), true, 0),
            (Some((4, 1)), true, 0),
            (Some((4, 0)), false, 1),
            (None, false, 1),
        ] {
            let (all, warnings) = names(false, kernel);
            assert_eq!((all.contains(&reuse), warnings), (set, warned), "{kernel:?}");
            assert_eq!(all[0], ("net/ipv4/vs/conntrack", 1));
        }
    }

    #[test]
    fn strict_arp_is_asked_for() {
        let arp = |all: Vec<(&str, i64)>| all.iter().filter(|(name, _)| name.contains("arp_")).count();
        assert_eq!(arp(names(false, Some((6, 1))).0), 0);
        assert_eq!(arp(names(true, Some((6, 1))).0), 2);
    }
}
