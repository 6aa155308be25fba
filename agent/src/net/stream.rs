//! A stream to a server, with or without TLS, for protocols whose client does not bring its own.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::pki_types::{InvalidDnsNameError, ServerName};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::tls::{ClientTls, TlsError};

/// Why there is no stream.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// The files of TLS cannot be used.
    #[error(transparent)]
    Files(Arc<TlsError>),
    /// TLS cannot be set up.
    #[error("cannot set up TLS")]
    Setup(#[source] rustls::Error),
    /// The host's name is none that a certificate could have.
    #[error("no certificate can be for this host")]
    Name(#[source] InvalidDnsNameError),
    /// Nobody answers there, or TLS cannot be agreed on.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// An open stream of either kind.
#[derive(Debug)]
pub enum Stream {
    /// TCP alone.
    Plain(TcpStream),
    /// With TLS.
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    /// Opens one to a host, without brackets, that sends small pieces at once. The files of `tls` are looked at first.
    ///
    /// # Errors
    /// When nobody answers, or TLS is not agreed on. Takes as long as the system waits.
    ///
    /// # Cancel safety
    /// Can be dropped.
    pub async fn open(
        host: &str,
        port: u16,
        tls: Option<&Arc<ClientTls>>,
    ) -> Result<Self, StreamError> {
        let config = match tls {
            Some(tls) => {
                let refreshed = Arc::clone(tls);
                tokio::task::spawn_blocking(move || refreshed.refresh())
                    .await
                    .map_err(io::Error::other)?
                    .map_err(StreamError::Files)?;
                Some(tls.config(&[]).map_err(StreamError::Setup)?)
            }
            None => None,
        };
        let stream = TcpStream::connect((host, port)).await?;
        stream.set_nodelay(true)?;
        let Some(config) = config else { return Ok(Self::Plain(stream)) };
        let name = ServerName::try_from(host.to_owned()).map_err(StreamError::Name)?;
        let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
        Ok(Self::Tls(Box::new(stream)))
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
