//! Virtual addresses on the loopback interface: put there when a door needs them, taken away when none does.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ferry_host::route::{Error, Route};
use ferry_model::Family;

/// Marks our addresses among those of the interface. Of the numbers that the kernel leaves to user programs.
const MARK: u8 = 0xfe;

#[derive(Debug)]
pub(super) struct Loopback {
    route: Route,
    index: u32,
    /// Those that we, or a predecessor, put there.
    ours: BTreeSet<IpAddr>,
    users: BTreeMap<IpAddr, usize>,
}

impl Loopback {
    /// None where there is no loopback interface.
    pub(super) fn open() -> Result<Option<Self>, Error> {
        let mut route = Route::open()?;
        let Some(link) = route.links()?.into_iter().find(|link| link.loopback) else {
            return Ok(None);
        };
        let ours = route.marked_addresses(link.index, MARK)?.into_iter().collect();
        Ok(Some(Loopback {
            route,
            index: link.index,
            ours,
            users: BTreeMap::new(),
        }))
    }

    /// Tries whether we may change the interface at all, with an address that means nothing to anybody.
    pub(super) fn probe(&mut self) -> Result<(), Error> {
        const UNUSED: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 255, 255, 253));
        if self.route.add_marked_address(self.index, UNUSED, MARK)? {
            self.route.remove_address(self.index, UNUSED)?;
        }
        Ok(())
    }

    /// Makes an address the host's own, if it is not already, and keeps it for one more user.
    pub(super) fn take(&mut self, address: IpAddr) -> Result<(), Error> {
        if !self.ours.contains(&address)
            && !is_local(address)
            && self.route.add_marked_address(self.index, address, MARK)?
        {
            self.ours.insert(address);
        }
        *self.users.entry(address).or_default() += 1;
        Ok(())
    }

    /// One user less; the address goes with the last.
    pub(super) fn release(&mut self, address: IpAddr) -> Result<(), Error> {
        let Some(users) = self.users.get_mut(&address) else {
            return Ok(());
        };
        *users -= 1;
        if *users == 0 {
            self.users.remove(&address);
            self.remove(address)?;
        }
        Ok(())
    }

    /// Addresses that we put there, that are in use, and that are not there any more.
    pub(super) fn missing(&mut self, family: Family) -> Result<Vec<IpAddr>, Error> {
        let there: BTreeSet<IpAddr> = self
            .route
            .marked_addresses(self.index, MARK)?
            .into_iter()
            .collect();
        let used = self
            .ours
            .iter()
            .filter(|address| self.users.contains_key(address));
        let missing = used.filter(|address| Family::of(**address) == family && !there.contains(address));
        Ok(missing.copied().collect())
    }

    /// Removes what a predecessor left and nobody uses now.
    pub(super) fn sweep(&mut self, family: Family) -> Result<usize, Error> {
        let unused = |address: &&IpAddr| Family::of(**address) == family && !self.users.contains_key(address);
        let stale: Vec<IpAddr> = self.ours.iter().filter(unused).copied().collect();
        for address in &stale {
            self.remove(*address)?;
        }
        Ok(stale.len())
    }

    /// Removes every address of ours.
    pub(super) fn clear(&mut self) -> Result<(), Error> {
        self.users.clear();
        for address in self.ours.clone() {
            self.remove(address)?;
        }
        Ok(())
    }

    fn remove(&mut self, address: IpAddr) -> Result<(), Error> {
        if self.ours.contains(&address) {
            self.route.remove_address(self.index, address)?;
            self.ours.remove(&address);
        }
        Ok(())
    }
}

/// Whether the host answers for an address already: then nothing has to be added.
fn is_local(address: IpAddr) -> bool {
    std::net::UdpSocket::bind((address, 0)).is_ok()
}
