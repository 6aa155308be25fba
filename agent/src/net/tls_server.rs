//! TLS of listeners: what they show and whose certificates they ask for, taken anew from the files when those change.
//!
//! As with clients the files are looked at before every handshake, a pair that does not belong together is never shown, and
//! what was read before stays in use meanwhile.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::server::WebPkiClientVerifier;
use rustls::sign::SingleCertAndKey;

use super::config::ServerTlsConfig;
use super::tls::{Cached, TlsError, authorities, identity};

/// One listener's TLS. Shared by all its connections.
#[derive(Debug)]
pub struct ServerTls {
    files: ServerTlsConfig,
    protocols: Vec<Vec<u8>>,
    provider: Arc<CryptoProvider>,
    state: Mutex<Cached<Arc<ServerConfig>>>,
}

impl ServerTls {
    /// Names the files and reads none. A client that offers protocols must offer one of these, unless there are none.
    #[must_use]
    pub fn new(files: ServerTlsConfig, protocols: &[&[u8]]) -> Self {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        Self { files, protocols, provider, state: Mutex::default() }
    }

    /// What the next connection is served with. Blocks for as long as small files take.
    ///
    /// # Errors
    /// When there is nothing that could be used, neither new nor from before.
    pub fn current(&self) -> Result<Arc<ServerConfig>, Arc<TlsError>> {
        let identity = &self.files.identity;
        let mut paths: Vec<&Path> = vec![&identity.certificate, &identity.key];
        paths.extend(self.files.ca.as_deref());
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let config = state.current(&paths, || self.load())?;
        Ok(Arc::clone(&config))
    }

    fn load(&self) -> Result<Arc<ServerConfig>, TlsError> {
        let builder = ServerConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Setup)?;
        let builder = match &self.files.ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let roots = Arc::new(authorities([path.as_path()])?);
                let provider = Arc::clone(&self.provider);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
                builder.with_client_cert_verifier(verifier.build().map_err(TlsError::Authorities)?)
            }
        };
        let identity = identity(&self.files.identity, &self.provider)?;
        let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(identity)));
        config.alpn_protocols = self.protocols.clone();
        Ok(Arc::new(config))
    }
}
