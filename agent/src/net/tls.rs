//! TLS of clients: whom they trust and what they show, taken anew from the files when those change.
//!
//! The files are looked at before every handshake, and read when one of them is another than before: a renewed certificate
//! or authority counts from the next connection on, sessions that live stay. A certificate and a key that do not belong
//! together are never shown: while the two are being replaced, what was read before stays in use, and that is said once.
//! Nothing is read before the first connection, so that a missing file keeps nobody from starting.

use std::fmt;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ResolvesClientCert, Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use super::config::{IdentityFiles, NetConfig, TlsConfig};
use crate::error_chain::Chain;
use crate::limits::PEM_BYTES_MAX;

/// Why a file of `tls` or `net.ca` cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// It cannot be read, or is too large.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// There is no PEM block of the kind that is looked for in it.
    #[error("{} holds no {what} in PEM form", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
        /// "certificate" or "private key".
        what: &'static str,
    },
    /// The key is another certificate's, or of a kind that cannot be used.
    #[error("the key {} does not go with the certificate {}", key.display(), certificate.display())]
    Pair {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// Why.
        #[source]
        source: rustls::Error,
    },
    /// The host trusts nobody, or no certificate of the authorities can be parsed.
    #[error("no authority to trust is known; name one with `tls.ca` or [net] `ca`")]
    NoAuthority,
    /// The authorities cannot be used.
    #[error("the authorities cannot be used")]
    Authorities(#[source] rustls::client::VerifierBuilderError),
    /// The crypto provider does not fit the protocol versions, which does not happen.
    #[error("TLS cannot be set up")]
    Setup(#[source] rustls::Error),
}

/// One client's TLS. Shared by all its connections.
#[derive(Debug)]
pub struct ClientTls {
    /// Whether it was asked for, not just made ready.
    required: bool,
    identity: Arc<Identity>,
    trust: Arc<Trust>,
    provider: Arc<CryptoProvider>,
}

impl ClientTls {
    /// Names the files and reads none.
    #[must_use]
    pub fn new(tls: Option<&TlsConfig>, net: &NetConfig) -> Self {
        // The one that the NATS client brings along; there is no other in the tree.
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let own = tls.and_then(|tls| tls.ca.clone());
        let system = own.is_none();
        let files =
            if system { net.ca.iter().cloned().collect() } else { own.into_iter().collect() };
        let trust =
            Trust { files, system, provider: Arc::clone(&provider), state: Mutex::default() };
        let identity = Identity {
            files: tls.and_then(|tls| tls.identity.clone()),
            provider: Arc::clone(&provider),
            state: Mutex::default(),
            requests: AtomicU64::new(0),
        };
        let (identity, trust) = (Arc::new(identity), Arc::new(trust));
        Self { required: tls.is_some(), identity, trust, provider }
    }

    /// Whether there is a `tls` table: nothing is to be sent without TLS then, where a protocol leaves the choice.
    #[must_use]
    pub fn is_required(&self) -> bool {
        self.required
    }

    /// Looks whether the files have changed and takes them up. Blocks for as long as small files take.
    ///
    /// # Errors
    /// When there is nothing that could be used, neither new nor from before.
    pub fn refresh(&self) -> Result<(), Arc<TlsError>> {
        self.trust.current()?;
        if let Some(files) = &self.identity.files {
            self.identity.current(files)?;
        }
        Ok(())
    }

    /// Handshakes so far in which the server has asked for a certificate, whether one was shown or not.
    #[must_use]
    pub fn certificate_requests(&self) -> u64 {
        self.identity.requests.load(Ordering::Relaxed)
    }

    /// What a client connects with; it offers these protocols.
    ///
    /// # Errors
    /// When the crypto provider does not fit the protocol versions, which does not happen.
    pub fn config(&self, protocols: &[&[u8]]) -> Result<ClientConfig, rustls::Error> {
        let builder = ClientConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(Arc::<Trust>::clone(&self.trust));
        let mut config = builder.with_client_cert_resolver(Arc::<Identity>::clone(&self.identity));
        if self.identity.files.is_some() {
            // A resumed session would go on under the certificate that it began with.
            config.resumption = Resumption::disabled();
        }
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        Ok(config)
    }
}

/// What tells one content of a path from another.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stamp(Option<[i64; 4]>);

impl Stamp {
    fn of(path: &Path) -> Self {
        let stamp = |found: Metadata| {
            [
                found.ino().cast_signed(),
                found.size().cast_signed(),
                found.mtime(),
                found.mtime_nsec(),
            ]
        };
        Self(std::fs::metadata(path).ok().map(stamp))
    }
}

/// What files were read last, what came of them, and what is in use.
#[derive(Debug)]
pub(super) struct Cached<T> {
    stamps: Vec<Stamp>,
    value: Option<Arc<T>>,
    error: Option<Arc<TlsError>>,
}

impl<T> Default for Cached<T> {
    fn default() -> Self {
        Self { stamps: Vec::new(), value: None, error: None }
    }
}

impl<T> Cached<T> {
    /// What is in use, after another look at the files.
    pub(super) fn current(
        &mut self,
        files: &[&Path],
        load: impl FnOnce() -> Result<T, TlsError>,
    ) -> Result<Arc<T>, Arc<TlsError>> {
        // Taken before reading: what changes in between is read again the next time.
        let stamps: Vec<Stamp> = files.iter().map(|path| Stamp::of(path)).collect();
        let was_read = self.value.is_some() || self.error.is_some();
        if !was_read || stamps != self.stamps {
            self.stamps = stamps;
            match load() {
                Ok(value) => {
                    if was_read {
                        let first = files.first().map(|path| path.display().to_string());
                        tracing::info!(file = first, "Replaced TLS files are taken up");
                    }
                    self.value = Some(Arc::new(value));
                    self.error = None;
                }
                Err(error) => {
                    if self.value.is_some() {
                        tracing::warn!(
                            error = %Chain(&error),
                            "Replaced TLS files cannot be used, those from before stay in use"
                        );
                    }
                    self.error = Some(Arc::new(error));
                }
            }
        }
        match (&self.value, &self.error) {
            (Some(value), _) => Ok(Arc::clone(value)),
            (None, Some(error)) => Err(Arc::clone(error)),
            (None, None) => Err(Arc::new(TlsError::NoAuthority)),
        }
    }
}

/// The certificate to show, if there is one.
#[derive(Debug)]
struct Identity {
    files: Option<IdentityFiles>,
    provider: Arc<CryptoProvider>,
    state: Mutex<Cached<CertifiedKey>>,
    /// Times that a server has asked.
    requests: AtomicU64,
}

impl Identity {
    fn current(&self, files: &IdentityFiles) -> Result<Arc<CertifiedKey>, Arc<TlsError>> {
        let IdentityFiles { certificate, key } = files;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.current(&[certificate, key], || identity(files, &self.provider))
    }
}

/// A certificate and the key that belongs to it.
pub(super) fn identity(
    files: &IdentityFiles,
    provider: &CryptoProvider,
) -> Result<CertifiedKey, TlsError> {
    let IdentityFiles { certificate, key } = files;
    let chain = certificates(certificate)?;
    let private = PrivateKeyDer::from_pem_slice(&read(key)?)
        .map_err(|_| TlsError::Empty { path: key.clone(), what: "private key" })?;
    CertifiedKey::from_der(chain, private, provider).map_err(|source| TlsError::Pair {
        certificate: certificate.clone(),
        key: key.clone(),
        source,
    })
}

/// The authorities in these files; each must hold one.
pub(super) fn authorities<'p>(
    files: impl IntoIterator<Item = &'p Path>,
) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for path in files {
        let (added, _) = roots.add_parsable_certificates(certificates(path)?);
        if added == 0 {
            return Err(TlsError::Empty { path: path.to_owned(), what: "certificate" });
        }
    }
    Ok(roots)
}

impl ResolvesClientCert for Identity {
    fn resolve(
        &self,
        _authorities: &[&[u8]],
        schemes: &[SignatureScheme],
    ) -> Option<Arc<CertifiedKey>> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        // Small files, once a handshake. Whoever wants the error asks before it connects.
        let current = self.files.as_ref().and_then(|files| self.current(files).ok());
        current.filter(|identity| identity.key.choose_scheme(schemes).is_some())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// The authorities to trust.
struct Trust {
    files: Vec<PathBuf>,
    /// Whether those of the host are trusted, too.
    system: bool,
    provider: Arc<CryptoProvider>,
    state: Mutex<Cached<Arc<WebPkiServerVerifier>>>,
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trust").field("files", &self.files).finish_non_exhaustive()
    }
}

impl Trust {
    fn current(&self) -> Result<Arc<WebPkiServerVerifier>, Arc<TlsError>> {
        let files: Vec<&Path> = self.files.iter().map(PathBuf::as_path).collect();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let verifier = state.current(&files, || {
            let mut roots = authorities(self.files.iter().map(PathBuf::as_path))?;
            if self.system {
                // Some of many may be damaged; what matters is whether the server's is among the others.
                let found = rustls_native_certs::load_native_certs();
                let _counts = roots.add_parsable_certificates(found.certs);
            }
            if roots.is_empty() {
                return Err(TlsError::NoAuthority);
            }
            let provider = Arc::clone(&self.provider);
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
                .build()
                .map_err(TlsError::Authorities)
        })?;
        Ok(Arc::clone(&*verifier))
    }
}

impl ServerCertVerifier for Trust {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verifier =
            self.current().map_err(|error| rustls::Error::General(Chain(&*error).to_string()))?;
        verifier.verify_server_cert(certificate, intermediates, name, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    use std::io::Read as _;

    let failed = |source| TlsError::Read { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(failed)?;
    file.take(PEM_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > PEM_BYTES_MAX {
        return Err(failed(std::io::Error::other(format!(
            "it is larger than {} MiB",
            PEM_BYTES_MAX >> 20
        ))));
    }
    Ok(bytes)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(path)?).collect();
    match found {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        _ => Err(TlsError::Empty { path: path.to_owned(), what: "certificate" }),
    }
}

#[cfg(test)]
mod tests {
    use super::super::certificates::{Authority, replace};
    use super::*;
    use crate::telemetry::captured::Captured;

    /// However often somebody connects while only one half of a pair is replaced: the pair from before stays, and that is one
    /// line in the log.
    #[test]
    fn d_15_half_a_pair_is_not_used_and_told_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let (authority, clients) = (Authority::new(), Authority::new());
        let (old, new) = (clients.pair(), clients.pair());
        replace(&path("ca"), &authority.pem);
        replace(&path("certificate"), &old.certificate);
        replace(&path("key"), &old.key);
        let files = IdentityFiles { certificate: path("certificate"), key: path("key") };
        let config = TlsConfig { ca: Some(path("ca")), identity: Some(files.clone()) };
        let tls = ClientTls::new(Some(&config), &NetConfig::default());
        let shown = || tls.identity.current(&files).unwrap().cert[0].clone();
        let log = Captured::default();
        tracing::subscriber::with_default(log.subscriber(), || {
            tls.refresh().unwrap();
            replace(&path("certificate"), &new.certificate);
            for _ in 0..20 {
                tls.refresh().unwrap();
                assert_eq!(shown(), old.certificate_der());
            }
            replace(&path("key"), &new.key);
            tls.refresh().unwrap();
            assert_eq!(shown(), new.certificate_der());
        });
        let text = log.text();
        let lines: Vec<_> = text.lines().collect();
        let [refused, taken] = lines[..] else { panic!("{text}") };
        let key = path("key").display().to_string();
        assert!(refused.contains("cannot be used") && refused.contains(&key), "{refused}");
        assert!(taken.contains("Replaced TLS files are taken up"), "{taken}");
    }
}
