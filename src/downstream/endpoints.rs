//! One target's addresses as its name resolves. Takes lookups; makes none, reads no clock.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// What a lookup of the name gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Lookup {
    Found(Vec<IpAddr>),
    /// The name server says that there is no such name, or that it has no address.
    NoSuchName,
    /// No answer, or one that says nothing about the name.
    Failed(String),
}

impl Lookup {
    /// What two lookups of one name say together, one for each address family. The second may not have come.
    pub(super) fn or(self, second: Option<Lookup>) -> Lookup {
        match (self, second) {
            (Lookup::Found(mut addresses), Some(Lookup::Found(more))) => {
                addresses.extend(more);
                // Sorted, as name servers rotate their answers: only a change of the set is a change.
                addresses.sort();
                addresses.dedup();
                Lookup::Found(addresses)
            }
            (Lookup::Found(mut addresses), _) | (_, Some(Lookup::Found(mut addresses))) => {
                addresses.sort();
                addresses.dedup();
                Lookup::Found(addresses)
            }
            (Lookup::NoSuchName, Some(Lookup::NoSuchName)) => Lookup::NoSuchName,
            (Lookup::Failed(why), _) | (_, Some(Lookup::Failed(why))) => Lookup::Failed(why),
            (Lookup::NoSuchName, None) => Lookup::NoSuchName,
        }
    }
}

/// What is known of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// The first lookup is under way.
    Nothing,
    Addresses {
        addresses: Vec<IpAddr>,
        /// The last lookup said that the name is gone: if these fail too, the name is the reason.
        vanished: bool,
    },
    Missing(String),
}

impl Known {
    /// What is known after one more lookup.
    ///
    /// One failed lookup does not empty the list (envoy#2691): a name server that is away says nothing about the
    /// name, and a single "no such name" may be a hiccup of a restart. The second in a row is believed.
    pub(super) fn after(&self, lookup: Lookup) -> Known {
        match (self, lookup) {
            (_, Lookup::Found(addresses)) if !addresses.is_empty() => Known::Addresses { addresses, vanished: false },
            (Known::Addresses { addresses, .. }, Lookup::Failed(_)) => {
                Known::Addresses { addresses: addresses.clone(), vanished: false }
            }
            (Known::Addresses { addresses, vanished: false }, _) => {
                Known::Addresses { addresses: addresses.clone(), vanished: true }
            }
            (_, Lookup::Failed(why)) => Known::Missing(why),
            (_, Lookup::NoSuchName | Lookup::Found(_)) => Known::Missing("no such name".to_owned()),
        }
    }

    pub(super) fn addresses(&self) -> &[IpAddr] {
        match self {
            Known::Addresses { addresses, .. } => addresses,
            Known::Nothing | Known::Missing(_) => &[],
        }
    }

    /// The addresses to use now. A name with both families is one host reached in two ways, so only one of them
    /// counts: IPv6 first, the other once that fails.
    pub(super) fn usable(&self, family: &Family) -> impl Iterator<Item = IpAddr> {
        let addresses = self.addresses();
        let v4 = addresses.iter().any(|address| address.is_ipv4() == family.v4()) == family.v4();
        addresses.iter().copied().filter(move |address| address.is_ipv4() == v4)
    }

    /// The other family's first address, to try when `address` cannot be connected.
    pub(super) fn other_way(&self, address: IpAddr) -> Option<IpAddr> {
        self.addresses().iter().copied().find(|other| other.is_ipv4() != address.is_ipv4())
    }
}

/// The address family that last worked.
#[derive(Debug, Default)]
pub(super) struct Family(AtomicBool);

impl Family {
    pub(super) fn v4(&self) -> bool {
        self.0.load(Relaxed)
    }

    /// Whether that is news.
    pub(super) fn worked(&self, address: IpAddr) -> bool {
        let news = self.v4() != address.is_ipv4();
        if news {
            self.0.store(address.is_ipv4(), Relaxed);
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ips(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().expect(text)).collect()
    }

    fn found(texts: &[&str]) -> Lookup {
        Lookup::Found(ips(texts))
    }

    #[test]
    fn two_families_together_are_one_answer() {
        assert_eq!(found(&["10.0.0.2", "10.0.0.1"]).or(Some(found(&["::1"]))), found(&["10.0.0.1", "10.0.0.2", "::1"]));
        assert_eq!(found(&["10.0.0.1"]).or(Some(Lookup::NoSuchName)), found(&["10.0.0.1"]));
        assert_eq!(Lookup::NoSuchName.or(Some(found(&["::1"]))), found(&["::1"]));
        assert_eq!(found(&["10.0.0.1"]).or(None), found(&["10.0.0.1"]));
        assert_eq!(Lookup::NoSuchName.or(Some(Lookup::NoSuchName)), Lookup::NoSuchName);
        let failed = || Lookup::Failed("timed out".to_owned());
        assert_eq!(Lookup::NoSuchName.or(Some(failed())), failed());
    }

    #[test]
    fn a_changed_address_replaces_the_old_one() {
        let known = Known::Nothing.after(found(&["10.0.0.1"])).after(found(&["10.0.0.2", "10.0.0.3"]));
        assert_eq!(known.addresses(), ips(&["10.0.0.2", "10.0.0.3"]));
    }

    #[test]
    fn one_failed_lookup_keeps_the_addresses_and_the_second_no_such_name_drops_them() {
        let known = Known::Nothing.after(found(&["10.0.0.1"])).after(Lookup::NoSuchName);
        assert_eq!(known, Known::Addresses { addresses: ips(&["10.0.0.1"]), vanished: true });
        let gone = known.after(Lookup::NoSuchName);
        assert_eq!(gone, Known::Missing("no such name".to_owned()));
        assert_eq!(gone.after(found(&["10.0.0.9"])).addresses(), ips(&["10.0.0.9"]));
    }

    #[test]
    fn a_name_server_that_is_away_says_nothing_about_the_name() {
        let mut known = Known::Nothing.after(found(&["10.0.0.1"]));
        for _ in 0..10 {
            known = known.after(Lookup::Failed("timed out".to_owned()));
        }
        assert_eq!(known.addresses(), ips(&["10.0.0.1"]));
        assert_eq!(
            Known::Nothing.after(Lookup::Failed("timed out".to_owned())),
            Known::Missing("timed out".to_owned())
        );
    }

    #[test]
    fn a_dual_stack_name_is_used_by_one_family_and_falls_back_to_the_other() {
        let known = Known::Nothing.after(found(&["127.0.0.1", "::1"]));
        let family = Family::default();
        assert_eq!(known.usable(&family).collect::<Vec<_>>(), ips(&["::1"]));
        let other = known.other_way(ips(&["::1"])[0]).expect("has both");
        family.worked(other);
        assert_eq!(known.usable(&family).collect::<Vec<_>>(), ips(&["127.0.0.1"]));
        assert_eq!(
            Known::Nothing.after(found(&["10.0.0.1"])).usable(&Family::default()).collect::<Vec<_>>(),
            ips(&["10.0.0.1"])
        );
    }
}
