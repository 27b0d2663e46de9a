//! TLS on loopback, with certificates made for the test.

use std::path::Path;
use std::sync::Arc;

use eddy_server::listen::BindError;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber,
};
use rustls::crypto::ring::{cipher_suite, default_provider};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, SupportedCipherSuite, SupportedProtocolVersion, version};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::support::{Options, Server, body, config, get, write};

type Ca = CertifiedIssuer<'static, KeyPair>;

fn ca(name: &str) -> Ca {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

struct Leaf {
    cert: String,
    key: String,
}

fn leaf(ca: &Ca, name: &str, serial: u64) -> Leaf {
    let mut params = CertificateParams::new(vec![name.to_owned(), "127.0.0.1".to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.serial_number = Some(SerialNumber::from(serial));
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate().unwrap();
    let cert = params.signed_by(&key, ca).unwrap();
    Leaf { cert: cert.pem(), key: key.serialize_pem() }
}

fn crl(ca: &Ca, serials: &[u64]) -> Vec<u8> {
    let now = std::time::SystemTime::now();
    let params = CertificateRevocationListParams {
        this_update: now.into(),
        next_update: (now + std::time::Duration::from_secs(3600)).into(),
        crl_number: SerialNumber::from(1),
        issuing_distribution_point: None,
        revoked_certs: serials
            .iter()
            .map(|serial| RevokedCertParams {
                serial_number: SerialNumber::from(*serial),
                revocation_time: now.into(),
                reason_code: None,
                invalidity_date: None,
            })
            .collect(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    params.signed_by(ca).unwrap().der().to_vec()
}

struct Files {
    dir: tempfile::TempDir,
    ca: Ca,
    flags: Vec<String>,
}

impl Files {
    fn new() -> Files {
        let (dir, ca) = (tempfile::tempdir().unwrap(), ca("trusted"));
        let server = leaf(&ca, "server.test", 1);
        let flags = vec![
            "--listen-client-urls=https://127.0.0.1:0".to_owned(),
            "--advertise-client-urls=https://127.0.0.1:2379".to_owned(),
            format!("--cert-file={}", write(dir.path(), "cert.pem", &server.cert)),
            format!("--key-file={}", write(dir.path(), "key.pem", &server.key)),
        ];
        Files { dir, ca, flags }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn with_client_auth(mut self) -> Files {
        let ca = write(self.path(), "ca.pem", self.ca.pem());
        self.flags.push(format!("--trusted-ca-file={ca}"));
        self.flags.push("--client-cert-auth".to_owned());
        self
    }

    async fn serve(&self, more: &[&str]) -> Server {
        let flags: Vec<&str> = self.flags.iter().map(String::as_str).chain(more.iter().copied()).collect();
        Server::start(&flags).await
    }
}

struct Client<'a> {
    ca_pem: String,
    identity: Option<&'a Leaf>,
    versions: &'static [&'static SupportedProtocolVersion],
    suites: Vec<SupportedCipherSuite>,
}

const ONLY_12: &[&SupportedProtocolVersion] = &[&version::TLS12];
const BOTH: &[&SupportedProtocolVersion] = &[&version::TLS13, &version::TLS12];

impl<'a> Client<'a> {
    fn of(files: &Files) -> Client<'a> {
        let suites = default_provider().cipher_suites;
        Client { ca_pem: files.ca.pem(), identity: None, versions: BOTH, suites }
    }

    fn with(self, identity: &'a Leaf) -> Client<'a> {
        Client { identity: Some(identity), ..self }
    }

    async fn connect(&self, server: &Server) -> std::io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.ca_pem.as_bytes()).unwrap()).unwrap();
        let provider = rustls::crypto::CryptoProvider { cipher_suites: self.suites.clone(), ..default_provider() };
        let builder = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(self.versions)
            .unwrap()
            .with_root_certificates(roots);
        let config = match self.identity {
            None => builder.with_no_client_auth(),
            Some(leaf) => builder
                .with_client_auth_cert(
                    vec![CertificateDer::from_pem_slice(leaf.cert.as_bytes()).unwrap()],
                    PrivateKeyDer::from_pem_slice(leaf.key.as_bytes()).unwrap(),
                )
                .unwrap(),
        };
        let stream = TcpStream::connect(server.grpc[0]).await?;
        let name = ServerName::try_from("127.0.0.1").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, stream).await
    }

    /// In TLS 1.3 a refused client certificate shows only when the answer is read.
    async fn get(&self, server: &Server) -> std::io::Result<String> {
        let answer = get(self.connect(server).await?, "/health").await?;
        Ok(body(&answer).to_owned())
    }
}

const HEALTHY: &str = r#"{"health":"true","reason":""}"#;

#[tokio::test]
async fn only_certificates_of_the_trusted_ca_are_let_in() {
    let files = Files::new().with_client_auth();
    let server = files.serve(&[]).await;
    let (known, stranger) = (leaf(&files.ca, "client.test", 2), leaf(&ca("other"), "client.test", 3));
    for versions in [BOTH, ONLY_12] {
        let client = || Client { versions, ..Client::of(&files) };
        assert_eq!(client().with(&known).get(&server).await.unwrap(), HEALTHY);
        client().get(&server).await.expect_err("no certificate");
        client().with(&stranger).get(&server).await.expect_err("another CA's certificate");
    }
    assert_eq!(server.metrics.tls_handshake_failures.get(), 4);
}

#[tokio::test]
async fn revoked_certificates_are_refused_as_soon_as_the_list_says_so() {
    for pem in [false, true] {
        let files = Files::new().with_client_auth();
        let encode = |der: Vec<u8>| match pem {
            false => der,
            true => pem_crl(&der).into_bytes(),
        };
        let list = write(files.path(), "crl", encode(crl(&files.ca, &[7])));
        let server = files.serve(&[&format!("--client-crl-file={list}")]).await;
        let (good, revoked) = (leaf(&files.ca, "good", 6), leaf(&files.ca, "bad", 7));
        assert_eq!(Client::of(&files).with(&good).get(&server).await.unwrap(), HEALTHY);
        Client::of(&files).with(&revoked).get(&server).await.expect_err("revoked");
        write(files.path(), "crl", encode(crl(&files.ca, &[6])));
        Client::of(&files).with(&good).get(&server).await.expect_err("revoked by the new list");
        assert_eq!(Client::of(&files).with(&revoked).get(&server).await.unwrap(), HEALTHY);
        write(files.path(), "crl", "no list at all");
        Client::of(&files).with(&revoked).get(&server).await.expect_err("an unreadable list lets nobody in");
    }
}

fn pem_crl(der: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::from("-----BEGIN X509 CRL-----\n");
    for chunk in der.chunks(3) {
        let bits = chunk.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for digit in 0..4 {
            let index = (bits >> (18 - 6 * digit)) & 63;
            text.push(if digit <= chunk.len() { char::from(DIGITS[index as usize]) } else { '=' });
        }
    }
    text.push_str("\n-----END X509 CRL-----\n");
    text
}

#[tokio::test]
async fn a_client_certificate_needs_an_allowed_name() {
    let files = Files::new().with_client_auth();
    let server = files.serve(&["--client-cert-allowed-hostname=a.test,b.test"]).await;
    let (allowed, not) = (leaf(&files.ca, "b.test", 2), leaf(&files.ca, "c.test", 3));
    assert_eq!(Client::of(&files).with(&allowed).get(&server).await.unwrap(), HEALTHY);
    Client::of(&files).with(&not).get(&server).await.expect_err("not an allowed name");
}

#[tokio::test]
async fn versions_and_suites_are_those_of_the_flags() {
    let files = Files::new();
    let negotiated = async |server: &Server, client: Client<'_>| {
        client.connect(server).await.map(|stream| {
            let (_, session) = stream.get_ref();
            (session.protocol_version().unwrap(), session.negotiated_cipher_suite().unwrap().suite())
        })
    };
    let old = files.serve(&["--tls-max-version=TLS1.2"]).await;
    let (version, _) = negotiated(&old, Client::of(&files)).await.unwrap();
    assert_eq!(version, rustls::ProtocolVersion::TLSv1_2);

    let new = files.serve(&["--tls-min-version=TLS1.3"]).await;
    let only_12 = || Client { versions: ONLY_12, ..Client::of(&files) };
    negotiated(&new, only_12()).await.expect_err("TLS 1.2 is too old here");
    let (version, _) = negotiated(&new, Client::of(&files)).await.unwrap();
    assert_eq!(version, rustls::ProtocolVersion::TLSv1_3);

    let one = files.serve(&["--cipher-suites=TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"]).await;
    let (_, suite) = negotiated(&one, only_12()).await.unwrap();
    assert_eq!(suite, rustls::CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256);
    let suites = vec![cipher_suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256];
    negotiated(&one, Client { suites, ..only_12() }).await.expect_err("no suite in common");
}

#[tokio::test]
async fn a_rotated_certificate_is_used_by_the_next_handshake() {
    let files = Files::new();
    let server = files.serve(&[]).await;
    let serial = async || {
        let stream = Client::of(&files).connect(&server).await.unwrap();
        stream.get_ref().1.peer_certificates().unwrap()[0].to_vec()
    };
    let before = serial().await;
    assert_eq!(serial().await, before);
    // Half a rotation: the certificate is new, the key is not.
    let next = leaf(&files.ca, "server.test", 99);
    write(files.path(), "cert.pem", format!("{}\n", next.cert));
    assert_eq!(serial().await, before, "a pair that does not fit together is not used");
    write(files.path(), "key.pem", format!("{}\n", next.key));
    let expected = CertificateDer::from_pem_slice(next.cert.as_bytes()).unwrap().to_vec();
    assert_eq!(serial().await, expected);
}

#[tokio::test]
async fn a_generated_certificate_outlives_the_process() {
    let dir = tempfile::tempdir().unwrap();
    let data_dir = format!("--data-dir={}", dir.path().display());
    let flags = [
        "--listen-client-urls=https://127.0.0.1:0",
        "--advertise-client-urls=https://127.0.0.1:2379",
        "--auto-tls",
        &data_dir,
    ];
    let mut seen = Vec::new();
    for _ in 0..2 {
        let server = Server::start(&flags).await;
        let pem = std::fs::read_to_string(dir.path().join("fixtures/client/cert.pem")).unwrap();
        let listener = TcpStream::connect(server.grpc[0]).await.unwrap();
        let stream = raw_handshake(listener).await;
        let shown = stream.get_ref().1.peer_certificates().unwrap()[0].to_vec();
        assert_eq!(CertificateDer::from_pem_slice(pem.as_bytes()).unwrap().to_vec(), shown);
        seen.push(shown);
    }
    assert_eq!(seen[0], seen[1]);
    use std::os::unix::fs::PermissionsExt;
    let key = std::fs::metadata(dir.path().join("fixtures/client/key.pem")).unwrap();
    assert_eq!(key.permissions().mode() & 0o777, 0o600);
}

/// A client that trusts whatever it is shown, like `--insecure-skip-tls-verify`.
pub async fn raw_handshake<S: AsyncRead + AsyncWrite + Unpin>(stream: S) -> TlsStream<S> {
    #[derive(Debug)]
    struct Anything(Arc<rustls::crypto::CryptoProvider>);
    use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
    impl ServerCertVerifier for Anything {
        fn verify_server_cert(
            &self,
            _: &CertificateDer<'_>,
            _: &[CertificateDer<'_>],
            _: &ServerName<'_>,
            _: &[u8],
            _: rustls::pki_types::UnixTime,
        ) -> Result<ServerCertVerified, rustls::Error> {
            Ok(ServerCertVerified::assertion())
        }
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            dss: &rustls::DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            rustls::crypto::verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
        }
        fn verify_tls13_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            dss: &rustls::DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            rustls::crypto::verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
        }
        fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
            self.0.signature_verification_algorithms.supported_schemes()
        }
    }
    let provider = Arc::new(default_provider());
    let config = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(BOTH)
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anything(provider)))
        .with_no_client_auth();
    TlsConnector::from(Arc::new(config)).connect(ServerName::try_from("x").unwrap(), stream).await.unwrap()
}

#[tokio::test]
async fn damaged_files_keep_the_process_from_starting_and_are_named() {
    let files = Files::new();
    write(files.path(), "key.pem", leaf(&files.ca, "other", 5).key);
    let flags: Vec<&str> =
        files.flags.iter().map(String::as_str).chain(["--listen-peer-urls=http://127.0.0.1:0"]).collect();
    let refused = async || match Server::try_with(&config(&flags), Options::default()).await {
        Err(BindError::Tls(err)) => err.to_string(),
        Err(err) => panic!("not about TLS: {err}"),
        Ok(_) => panic!("must not start"),
    };
    let text = refused().await;
    assert!(text.contains("do not fit together") && text.contains("cert.pem"), "{text}");
    write(files.path(), "key.pem", "garbage");
    let text = refused().await;
    assert!(text.contains("key.pem"), "{text}");
    std::fs::remove_file(files.path().join("key.pem")).unwrap();
    let text = refused().await;
    assert!(text.contains("key.pem"), "{text}");
}
