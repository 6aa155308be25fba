//! The part of a URL that says where a server is, for the schemes that no URL library knows.

/// Host, without brackets, and port, if it names one, of `HOST`, `HOST:PORT` or `[ADDRESS]:PORT`. A slash behind it is left out.
///
/// # Errors
/// Says what `url`, which it stands in, does not have.
pub fn host_and_port<'a>(url: &str, authority: &'a str) -> Result<(&'a str, Option<u16>), String> {
    let authority = authority.strip_suffix('/').unwrap_or(authority);
    let (host, port) = match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, "")) => (address, None),
        Some((address, rest)) => (address, Some(rest.strip_prefix(':').unwrap_or(rest))),
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    let of_host = |c: char| c.is_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '%');
    if host.is_empty() || !host.chars().all(of_host) {
        return Err(format!("\"{url}\" names no host"));
    }
    match port.map(str::parse) {
        None => Ok((host, None)),
        Some(Ok(port @ 1..)) => Ok((host, Some(port))),
        Some(_) => Err(format!("\"{url}\" has no valid port")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_ports_are_told_apart_and_what_is_neither_is_named() {
        for (authority, expected) in [
            ("h", Ok(("h", None))),
            ("h:4222/", Ok(("h", Some(4222)))),
            ("10.0.0.1:1", Ok(("10.0.0.1", Some(1)))),
            ("[::1]", Ok(("::1", None))),
            ("[fe80::1%eth0]:65535", Ok(("fe80::1%eth0", Some(65535)))),
            ("", Err("\"u\" names no host")),
            (":1", Err("\"u\" names no host")),
            ("a b", Err("\"u\" names no host")),
            ("h//", Err("\"u\" names no host")),
            ("h:", Err("\"u\" has no valid port")),
            ("h:0", Err("\"u\" has no valid port")),
            ("h:65536", Err("\"u\" has no valid port")),
            ("[::1]x", Err("\"u\" has no valid port")),
        ] {
            let expected = expected.map_err(str::to_owned);
            assert_eq!(host_and_port("u", authority), expected, "{authority}");
        }
    }
}
