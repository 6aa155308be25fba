//! Asks an agent over its socket.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper::header::HOST;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::UnixStream;

use super::super::{ExitCode, Failure};
use crate::limits::{ADMIN_ANSWER_BYTES_MAX, ADMIN_CLIENT_TIMEOUT_MS};
use crate::tasks::TaskGroup;

/// What an agent is asked.
#[derive(Debug, Clone)]
pub(super) struct Question {
    pub(super) path: &'static str,
    /// The order; without one it is a GET.
    pub(super) order: Option<Bytes>,
    /// For how long the agent may take, beside the usual time.
    pub(super) patience: Duration,
}

/// Why one socket gave no answer.
#[derive(Debug, thiserror::Error)]
enum AskError {
    #[error("{0}")]
    Connect(#[source] io::Error),
    #[error("it accepts, and does not answer in time")]
    Silent,
    #[error("it does not speak as an agent does: {0}")]
    Protocol(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// A problem as the agent tells it.
#[derive(Deserialize)]
struct Problem {
    detail: String,
}

/// What the first of these sockets answers.
pub(super) fn first_answer(sockets: &[PathBuf], question: &Question) -> anyhow::Result<Bytes> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut failed = Vec::new();
    for socket in sockets {
        let wait = Duration::from_millis(ADMIN_CLIENT_TIMEOUT_MS) + question.patience;
        let asked = runtime
            .block_on(async { tokio::time::timeout(wait, ask(socket, question)).await })
            .unwrap_or(Err(AskError::Silent));
        match asked {
            Ok((StatusCode::OK, answer)) => return Ok(answer),
            Ok((status, answer)) => return Err(refused(status, &answer).into()),
            Err(error) => {
                // What has an order may be carrying it out.
                let is_over = question.order.is_some() && !matches!(error, AskError::Connect(_));
                failed.push((socket, error));
                if is_over {
                    break;
                }
            }
        }
    }
    Err(no_answer(&failed).into())
}

async fn ask(socket: &Path, question: &Question) -> Result<(StatusCode, Bytes), AskError> {
    let stream = UnixStream::connect(socket).await.map_err(AskError::Connect)?;
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(protocol)?;
    // The connection moves the bytes; what it ends with, the request ends with, too.
    let mut tasks = TaskGroup::default();
    tasks.spawn("connection", tracing::Span::none(), async { drop(connection.await) });
    let method = if question.order.is_some() { "POST" } else { "GET" };
    let request = Request::builder()
        .method(method)
        .uri(question.path)
        .header(HOST, "localhost")
        .body(Full::new(question.order.clone().unwrap_or_default()))
        .map_err(protocol)?;
    let response = sender.send_request(request).await.map_err(protocol)?;
    let status = response.status();
    let body = Limited::new(response.into_body(), ADMIN_ANSWER_BYTES_MAX);
    let bytes = body.collect().await.map_err(AskError::Protocol)?.to_bytes();
    Ok((status, bytes))
}

/// In the agent's own words, if it has some.
fn refused(status: StatusCode, answer: &[u8]) -> Failure {
    let problem = serde_json::from_slice::<Problem>(answer);
    let message = problem.map_or_else(
        |_| format!("the agent answers {status}"),
        |problem| format!("the agent refuses: {}", problem.detail),
    );
    Failure { code: ExitCode::Failed, message, hint: None }
}

fn protocol(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> AskError {
    AskError::Protocol(error.into())
}

fn no_answer(failed: &[(&PathBuf, AskError)]) -> Failure {
    let told: Vec<_> = failed
        .iter()
        .map(|(socket, error)| format!("{} ({})", socket.display(), explained(error)))
        .collect();
    let denied = failed.iter().any(|(_, error)| {
        matches!(error, AskError::Connect(error) if error.kind() == io::ErrorKind::PermissionDenied)
    });
    let hint = if denied {
        "ask as root, or as a member of the group that the socket belongs to"
    } else {
        "is the agent running? -c FILE names its config, --socket PATH its socket"
    };
    Failure {
        code: ExitCode::Failed,
        message: format!("no agent answers on {}", told.join(" or ")),
        hint: Some(hint.to_owned()),
    }
}

fn explained(error: &AskError) -> String {
    match error {
        AskError::Connect(cause) => match cause.kind() {
            io::ErrorKind::NotFound => "there is no such file".to_owned(),
            io::ErrorKind::ConnectionRefused => "it exists, and nobody listens on it".to_owned(),
            io::ErrorKind::PermissionDenied => "you may not open it".to_owned(),
            _ => cause.to_string(),
        },
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    fn told(socket: PathBuf) -> String {
        let status = Question { path: "/status", order: None, patience: Duration::ZERO };
        first_answer(&[socket], &status).unwrap_err().to_string()
    }

    #[test]
    fn without_an_agent_it_says_which_socket_and_whether_it_exists() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("admin.sock");
        assert_eq!(
            told(socket.clone()),
            format!("no agent answers on {} (there is no such file)", socket.display())
        );
        drop(UnixListener::bind(&socket).unwrap());
        assert!(told(socket).ends_with("(it exists, and nobody listens on it)"));
    }

    #[test]
    fn who_speaks_otherwise_is_no_agent() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("other.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let other = std::thread::spawn(move || {
            use std::io::Write as _;
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(b"220 mail.example ESMTP\r\n").unwrap();
        });
        assert!(told(socket).contains("it does not speak as an agent does"));
        other.join().unwrap();
    }
}
