//! Where a client may connect to: the addresses that names stand for are looked at before anything is sent, and the connection
//! goes to one that was looked at, so that a name that changes its mind in between gains nothing.
//!
//! Addresses that are special by the registries of the IANA (loopback, private, link-local, shared, documentation, multicast,
//! translated and mapped ones: <https://www.iana.org/assignments/iana-ipv4-special-registry>,
//! <https://www.iana.org/assignments/iana-ipv6-special-registry>) are reached only where a network that is listed holds them.
//! Behind a proxy it is the proxy that looks names up: of those only what stands in the URL as an address can be checked.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ipnet::IpNet;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use crate::limits::ADDRESSES_MAX;
use crate::settings::Complaint;

/// What may be reached.
#[derive(Debug, Clone, Default)]
pub struct Reach {
    networks: Arc<[IpNet]>,
    /// The proxy's name, which the operator has chosen.
    proxy: Option<String>,
}

/// A name or address that leads where nothing may go.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{host} is {address}, which is not a public address; list its network in `allow.networks` if that is meant"
)]
pub struct OutOfReach {
    /// As it was asked for.
    pub host: String,
    /// One of its addresses.
    pub address: IpAddr,
}

impl Reach {
    /// Everything public, and these networks.
    #[must_use]
    pub fn new(networks: &[IpNet], proxy: Option<&str>) -> Self {
        Self { networks: networks.into(), proxy: proxy.map(str::to_owned) }
    }

    /// Whether an address may be connected to.
    #[must_use]
    pub fn permits(&self, address: IpAddr) -> bool {
        let is_listed = |address: &IpAddr| self.networks.iter().any(|net| net.contains(address));
        is_listed(&address) || is_listed(&address.to_canonical()) || is_public(address)
    }

    /// Looks a name up, and keeps what may be connected to.
    async fn look_up(self, host: String) -> Result<Vec<std::net::SocketAddr>, LookUpError> {
        // The port is the client's to set.
        let found = tokio::net::lookup_host((host.as_str(), 0)).await?;
        let found: Vec<_> = found.take(ADDRESSES_MAX).collect();
        if self.proxy.as_ref() == Some(&host) {
            return Ok(found);
        }
        let (good, bad): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|address| self.permits(address.ip()));
        match bad.first() {
            Some(address) if good.is_empty() => {
                Err(LookUpError::Denied(OutOfReach { host, address: address.ip() }))
            }
            _ => Ok(good),
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum LookUpError {
    #[error(transparent)]
    Failed(#[from] std::io::Error),
    #[error(transparent)]
    Denied(OutOfReach),
}

impl Resolve for Reach {
    fn resolve(&self, name: Name) -> Resolving {
        let (reach, host) = (self.clone(), name.as_str().to_owned());
        Box::pin(async move {
            let found = reach.look_up(host).await.map_err(|error| match error {
                LookUpError::Failed(error) => {
                    Box::new(error) as Box<dyn std::error::Error + Send + Sync>
                }
                LookUpError::Denied(denied) => Box::new(denied),
            })?;
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

/// Whether an address is one that everybody means the same by.
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let is_special = match a {
        // This network, private, loopback, multicast, reserved and broadcast.
        0 | 10 | 127 | 224..=255 => true,
        // Shared between carriers and customers.
        100 => (64..128).contains(&b),
        // Link-local.
        169 => b == 254,
        172 => (16..32).contains(&b),
        // Protocol assignments, documentation, the former 6to4 relays, private.
        192 => matches!((b, c), (0, 0 | 2) | (88, 99) | (168, _)),
        // Benchmarks, documentation.
        198 => matches!((b, c), (18 | 19, _) | (51, 100)),
        203 => (b, c) == (0, 113),
        _ => false,
    };
    !is_special
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let [first, second, ..] = address.segments();
    match first {
        // Teredo, benchmarks, ORCHID and the other protocol assignments; documentation.
        0x2001 if second < 0x200 || second == 0xdb8 => false,
        // 6to4 hides an IPv4 address.
        0x2002 => false,
        // Documentation.
        0x3fff if second < 0x1000 => false,
        // Only this block is given out for unicast; all others are special in some way.
        0x2000..=0x3fff => true,
        _ => false,
    }
}

/// A network as a config names it; an address by itself is one.
///
/// # Errors
/// When it is none.
pub fn parse_network(text: &str) -> Result<IpNet, Complaint> {
    let network = text.parse::<IpNet>().or_else(|_| {
        let address = text.parse::<IpAddr>();
        address.map(IpNet::from)
    });
    network.map(|network| network.trunc()).map_err(|_| {
        Complaint::new(format!("\"{text}\" is no network"))
            .hint("write an address and how many bits of it count: \"192.168.1.0/24\"")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn special_addresses_are_out_of_reach_unless_their_network_is_listed() {
        let reach = Reach::default();
        for public in ["1.1.1.1", "93.184.216.34", "172.32.0.1", "192.0.1.1", "2606:4700::1111"] {
            assert!(reach.permits(ip(public)), "{public}");
        }
        for special in [
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "127.0.0.1",
            "127.255.255.254",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.192",
            "192.0.2.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.51.100.7",
            "203.0.113.9",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:1.1.1.1",
            "::127.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b:1::1",
            "100::1",
            "2001::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "3fff::1",
            "fc00::1",
            "fd12:3456::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(!reach.permits(ip(special)), "{special}");
        }
    }

    #[test]
    fn a_listed_network_is_reached_also_by_its_mapped_addresses() {
        let networks = ["127.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()];
        let reach = Reach::new(&networks, None);
        for listed in ["127.0.0.1", "::ffff:127.0.0.1", "fd00::1"] {
            assert!(reach.permits(ip(listed)), "{listed}");
        }
        for other in ["10.0.0.1", "::1", "::ffff:10.0.0.1", "fc00::1"] {
            assert!(!reach.permits(ip(other)), "{other}");
        }
    }

    #[tokio::test]
    async fn a_name_is_looked_at_by_what_it_stands_for() {
        let error = Reach::default().look_up("localhost".to_owned()).await.unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("localhost is ") && text.contains("allow.networks"), "{text}");
        let networks = ["127.0.0.0/8".parse().unwrap(), "::1/128".parse().unwrap()];
        let reach = Reach::new(&networks, None);
        assert!(!reach.look_up("localhost".to_owned()).await.unwrap().is_empty());
        // The proxy's address is the operator's choice.
        let reach = Reach::new(&[], Some("localhost"));
        assert!(!reach.look_up("localhost".to_owned()).await.unwrap().is_empty());
    }
}
