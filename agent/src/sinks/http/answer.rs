//! What an answer means. The table stands in the module's doc ([`super`]).

use std::time::Duration;

use reqwest::header::{DATE, HeaderMap, LOCATION, RETRY_AFTER};
use reqwest::{Response, StatusCode};

use super::super::{Class, SinkError};
use crate::clock::{Clock, Timestamp};
use crate::limits::{
    HTTP_ANSWER_BYTES_MAX, HTTP_ANSWER_MS_MAX, HTTP_EXCERPT_BYTES_MAX, RETRY_AFTER_MS_MAX,
};
use crate::settings::mask;

/// What is kept of a response.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    retry_after: Option<Duration>,
    location: Option<String>,
    excerpt: String,
}

impl Answer {
    /// Reads what is needed of a response, and the rest as far as that lets its connection be used again. None of `secrets`
    /// gets into the excerpt, although a destination may repeat what it was sent.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection.
    pub(super) async fn read(
        mut response: Response,
        clock: &dyn Clock,
        secrets: &[String],
    ) -> Self {
        let status = response.status();
        let headers = response.headers();
        let retry_after = retry_after(headers, clock.now());
        let location = headers
            .get(LOCATION)
            .filter(|_| status.is_redirection())
            .and_then(|value| value.to_str().ok())
            .map(|text| escaped(&mask::hidden(mask::urls(text).into_owned(), secrets)));
        let is_text = !headers.contains_key(reqwest::header::CONTENT_ENCODING);
        let mut body = Vec::new();
        let drain = async {
            let mut length = 0;
            while let Ok(Some(piece)) = response.chunk().await {
                length += piece.len();
                if body.len() < HTTP_ANSWER_BYTES_MAX {
                    body.extend_from_slice(&piece);
                }
                if length > HTTP_ANSWER_BYTES_MAX {
                    break;
                }
            }
        };
        // The status says all that counts; a body that never ends changes nothing.
        let limit = Duration::from_millis(HTTP_ANSWER_MS_MAX);
        let _is_complete = tokio::time::timeout(limit, drain).await.is_ok();
        let excerpt = if is_text {
            let text = mask::hidden(String::from_utf8_lossy(&body).into_owned(), secrets);
            escaped(text.trim())
        } else {
            String::new()
        };
        Self { status, retry_after, location, excerpt }
    }

    /// The failure that the answer to a batch is, `None` for a success. `sent` is method and URL; `conflicts` are the
    /// statuses that mean a conflict.
    pub(super) fn failure(&self, sent: &str, conflicts: &[u16]) -> Option<SinkError> {
        let code = self.status.as_u16();
        let error = |class| SinkError::new(class, self.reason(sent));
        let failure = match code {
            200..=299 => return None,
            _ if conflicts.contains(&code) => error(Class::Conflict).answered(),
            300..=399 | 401 | 403 | 404 | 405 | 407 | 410 => error(Class::Unreachable),
            502..=504 => error(Class::Unreachable).doubtful(),
            408 | 425 | 429 | 500.. => error(Class::Retryable).answered(),
            _ => error(Class::Rejected).answered(),
        };
        Some(SinkError { retry_after: self.retry_after, ..failure })
    }

    /// What the answer to a probe shows. It has no body and asks nothing to be stored, so that a server may answer it in
    /// ways that say nothing about a batch; only what stands between here and the server is believed.
    pub(super) fn probe_failure(&self, sent: &str) -> Option<SinkError> {
        let error = |class| SinkError::new(class, self.reason(sent));
        let failure = match self.status.as_u16() {
            407 => error(Class::Unreachable),
            502..=504 => error(Class::Unreachable).doubtful(),
            429 => error(Class::Retryable).answered(),
            _ => return None,
        };
        Some(SinkError { retry_after: self.retry_after, ..failure })
    }

    fn reason(&self, sent: &str) -> String {
        let Self { status, location, excerpt, .. } = self;
        let hint = match status.as_u16() {
            300..=399 => match location {
                Some(location) => format!("; no redirect is followed, it leads to {location}"),
                None => "; no redirect is followed".to_owned(),
            },
            401 | 403 => "; check `headers`, `auth` and `tls`".to_owned(),
            404 | 405 | 410 => "; check `url` and `method`".to_owned(),
            407 => "; the proxy wants a password".to_owned(),
            _ => String::new(),
        };
        let said = if excerpt.is_empty() { String::new() } else { format!(": {excerpt}") };
        format!("{sent} was answered {status}{hint}{said}")
    }
}

/// How long the destination wants to be left alone, if it says so: seconds or a date.
fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let wait = if let Ok(seconds) = text.parse::<u64>() {
        Duration::from_secs(seconds)
    } else if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        Duration::MAX
    } else {
        let until = httpdate::parse_http_date(text).ok()?;
        // The server's own clock tells how long that is, also where ours is wrong.
        let date = headers.get(DATE).and_then(|date| date.to_str().ok());
        let from = match date.and_then(|date| httpdate::parse_http_date(date).ok()) {
            Some(date) => date,
            None => std::time::UNIX_EPOCH + Duration::from_nanos(u64::try_from(now.0).unwrap_or(0)),
        };
        until.duration_since(from).unwrap_or_default()
    };
    Some(wait.min(Duration::from_millis(RETRY_AFTER_MS_MAX)))
}

/// The beginning of the text, with what could steer a terminal escaped.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for character in text.chars() {
        let start = out.len();
        if character.is_control() {
            out.extend(character.escape_default());
        } else {
            out.push(character);
        }
        if out.len() > HTTP_EXCERPT_BYTES_MAX - '…'.len_utf8() {
            out.truncate(start);
            out.push('…');
            break;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderValue;

    use super::*;

    fn failure(status: u16, conflicts: &[u16]) -> Option<SinkError> {
        let status = StatusCode::from_u16(status).unwrap();
        let answer =
            Answer { status, retry_after: None, location: None, excerpt: "no\\n".to_owned() };
        answer.failure("POST http://h/", conflicts)
    }

    /// The rows of the table in the module's doc that a status decides.
    #[test]
    fn each_status_has_the_class_of_the_table() {
        let class = |status| failure(status, &[]).map(|e| (e.class, e.answered, e.doubtful));
        for status in [200, 201, 202, 204, 207] {
            assert_eq!(class(status), None, "{status}");
        }
        for status in [300, 301, 302, 303, 304, 307, 308, 401, 403, 404, 405, 407, 410] {
            assert_eq!(class(status), Some((Class::Unreachable, false, false)), "{status}");
        }
        for status in [502, 503, 504] {
            assert_eq!(class(status), Some((Class::Unreachable, false, true)), "{status}");
        }
        for status in [408, 425, 429, 500, 501, 505, 507, 511, 599] {
            assert_eq!(class(status), Some((Class::Retryable, true, false)), "{status}");
        }
        for status in [400, 402, 406, 409, 411, 412, 413, 414, 415, 418, 421, 422, 431, 451] {
            assert_eq!(class(status), Some((Class::Rejected, true, false)), "{status}");
        }
        let conflict = failure(409, &[412, 409]).unwrap();
        assert_eq!((conflict.class, conflict.answered), (Class::Conflict, true));
        let error = failure(404, &[]).unwrap();
        let expected = "POST http://h/ was answered 404 Not Found; check `url` and `method`: no\\n";
        assert_eq!(error.reason, expected);
    }

    #[test]
    fn a_wish_to_wait_is_read_in_both_forms_and_bounded() {
        let now = Timestamp(1_445_412_480_000_000_000); // Wed, 21 Oct 2015 07:28:00 GMT
        let asked = |text: &'static str, date: Option<&'static str>| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, HeaderValue::from_static(text));
            if let Some(date) = date {
                headers.insert(DATE, HeaderValue::from_static(date));
            }
            retry_after(&headers, now).map(|wait| wait.as_secs())
        };
        assert_eq!(asked("5", None), Some(5));
        assert_eq!(asked(" 120 ", None), Some(120));
        assert_eq!(asked("999999999999999999999999", None), Some(3600));
        assert_eq!(asked("86400", None), Some(3600));
        assert_eq!(asked("Wed, 21 Oct 2015 07:28:30 GMT", None), Some(30));
        assert_eq!(asked("Wed, 21 Oct 2015 07:00:00 GMT", None), Some(0));
        // Our clock is a year behind; the server's tells.
        let dates = ("Fri, 21 Oct 2016 07:28:30 GMT", "Fri, 21 Oct 2016 07:28:00 GMT");
        assert_eq!(asked(dates.0, Some(dates.1)), Some(30));
        assert_eq!(asked(dates.0, None), Some(3600));
        for text in ["", "soon", "-1", "1.5"] {
            assert_eq!(asked(text, None), None, "{text}");
        }
        assert_eq!(retry_after(&HeaderMap::new(), now), None);
    }

    #[test]
    fn excerpts_are_short_and_hold_neither_secrets_nor_control_characters() {
        let secrets = ["S3CR3T".to_owned(), String::new()];
        let text = mask::hidden("a S3CR3T b\u{1b}[31m".to_owned(), &secrets);
        assert_eq!(escaped(&text), "a *** b\\u{1b}[31m");
        for filler in ["x", "é", "\u{1b}"] {
            let text = escaped(&filler.repeat(1000));
            assert!(text.len() <= 256 && text.len() > 240 && text.ends_with('…'), "{text}");
        }
        // A secret that the cut would go through does not show in part.
        let text = format!("{}S3CR3T", "x".repeat(250));
        assert!(!escaped(&mask::hidden(text, &secrets)).contains("S3"));
    }
}
