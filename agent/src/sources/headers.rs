//! Headers that foreign messages bring along, as headers of their records.
//!
//! One is left out when its name is none that HTTP and NATS know as a header's, begins with `waystation-`, or its value holds
//! a control character, and when there are more than 64, or more than 32 KiB of them. How many were left out is a header.

use crate::limits::{FOREIGN_HEADERS_MAX, HEADERS_BYTES_MAX};
use crate::record::HeadersBuffer;

const OURS: &str = "waystation-";
const BYTES_MAX: usize = HEADERS_BYTES_MAX / 2;

/// Adds them, and under `left_out_name` how many were left out, if there were some.
pub(super) fn push_foreign<'a>(
    pairs: impl Iterator<Item = (&'a str, &'a str)>,
    left_out_name: &str,
    headers: &mut HeadersBuffer,
) {
    let (mut count, mut bytes, mut left_out) = (0, 0, 0_u32);
    for (name, value) in pairs {
        let size = name.len() + value.len();
        if count < FOREIGN_HEADERS_MAX
            && bytes + size <= BYTES_MAX
            && is_name(name)
            && !value.contains(char::is_control)
        {
            headers.push(name, value);
            count += 1;
            bytes += size;
        } else {
            left_out += 1;
        }
    }
    if left_out > 0 {
        headers.push(left_out_name, &left_out.to_string());
    }
}

/// Whether it may be a header's name: a token of HTTP that is none of ours.
fn is_name(name: &str) -> bool {
    let of_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let is_ours = name.get(..OURS.len()).is_some_and(|start| start.eq_ignore_ascii_case(OURS));
    !name.is_empty() && name.bytes().all(of_token) && !is_ours
}
