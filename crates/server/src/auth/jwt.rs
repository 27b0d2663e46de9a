//! JSON web tokens: signed, so that every replica that has the key recognizes them, and for a fixed time.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use ring::rand::SystemRandom;
use ring::signature::{
    self, EcdsaKeyPair, EcdsaSigningAlgorithm, Ed25519KeyPair, KeyPair, RsaEncoding, RsaKeyPair, UnparsedPublicKey,
    VerificationAlgorithm,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, SubjectPublicKeyInfoDer};
use serde_json::{Value, json};
use x509_parser::prelude::{FromDer, SubjectPublicKeyInfo, X509Certificate};

use super::error::{AuthError, OptionsError};
use crate::config::value::parse_duration;

/// How long a token lasts where no time is given, as in etcd.
const TTL_DEFAULT: Duration = Duration::from_secs(300);

/// The identifiers of elliptic curves, and of keys on them, as DER writes them.
const EC_KEY: &[u8] = &[0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
const P256: &[u8] = &[0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
const P384: &[u8] = &[0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x22];

/// A method of signing.
#[derive(Clone, Copy)]
enum Method {
    Hmac(hmac::Algorithm),
    Rsa(&'static dyn RsaEncoding, &'static dyn VerificationAlgorithm),
    Ecdsa(&'static EcdsaSigningAlgorithm, &'static dyn VerificationAlgorithm, &'static [u8]),
    Ed25519,
}

fn method(name: &str) -> Result<Method, OptionsError> {
    Ok(match name {
        "HS256" => Method::Hmac(hmac::HMAC_SHA256),
        "HS384" => Method::Hmac(hmac::HMAC_SHA384),
        "HS512" => Method::Hmac(hmac::HMAC_SHA512),
        "RS256" => Method::Rsa(&signature::RSA_PKCS1_SHA256, &signature::RSA_PKCS1_2048_8192_SHA256),
        "RS384" => Method::Rsa(&signature::RSA_PKCS1_SHA384, &signature::RSA_PKCS1_2048_8192_SHA384),
        "RS512" => Method::Rsa(&signature::RSA_PKCS1_SHA512, &signature::RSA_PKCS1_2048_8192_SHA512),
        "PS256" => Method::Rsa(&signature::RSA_PSS_SHA256, &signature::RSA_PSS_2048_8192_SHA256),
        "PS384" => Method::Rsa(&signature::RSA_PSS_SHA384, &signature::RSA_PSS_2048_8192_SHA384),
        "PS512" => Method::Rsa(&signature::RSA_PSS_SHA512, &signature::RSA_PSS_2048_8192_SHA512),
        "ES256" => {
            let (signs, verifies) = (&signature::ECDSA_P256_SHA256_FIXED_SIGNING, &signature::ECDSA_P256_SHA256_FIXED);
            Method::Ecdsa(signs, verifies, P256)
        }
        "ES384" => {
            let (signs, verifies) = (&signature::ECDSA_P384_SHA384_FIXED_SIGNING, &signature::ECDSA_P384_SHA384_FIXED);
            Method::Ecdsa(signs, verifies, P384)
        }
        "EdDSA" => Method::Ed25519,
        "ES512" => return Err(OptionsError::NotBuilt(name.to_owned())),
        _ => return Err(OptionsError::Method),
    })
}

/// What signs.
enum Signer {
    Hmac(hmac::Key),
    Rsa(Box<RsaKeyPair>, &'static dyn RsaEncoding),
    Ecdsa(Box<EcdsaKeyPair>),
    Ed25519(Box<Ed25519KeyPair>),
}

/// What verifies.
enum Verifier {
    Hmac(hmac::Key),
    Public(UnparsedPublicKey<Vec<u8>>),
}

/// Tokens of one method and key.
pub struct Jwt {
    method: String,
    ttl: Duration,
    /// `None`: tokens are only recognized here, others give them.
    signer: Option<Signer>,
    verifier: Verifier,
    random: SystemRandom,
}

impl std::fmt::Debug for Jwt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Jwt").field("method", &self.method).field("ttl", &self.ttl).finish_non_exhaustive()
    }
}

/// A key that was read from a file.
struct KeyFile {
    path: PathBuf,
    bytes: Vec<u8>,
}

impl KeyFile {
    fn read(path: Option<&&str>) -> Result<Option<Self>, OptionsError> {
        let Some(path) = path.filter(|path| !path.is_empty()).map(|path| PathBuf::from(*path)) else { return Ok(None) };
        match std::fs::read(&path) {
            // etcd takes an empty file for none.
            Ok(bytes) => Ok((!bytes.is_empty()).then_some(Self { path, bytes })),
            Err(error) => Err(OptionsError::File { path, error }),
        }
    }

    fn private(&self) -> Option<PrivateKeyDer<'static>> {
        PrivateKeyDer::from_pem_slice(&self.bytes).ok()
    }

    /// The public key in a certificate, or alone.
    fn public(&self) -> Option<Vec<u8>> {
        if let Ok(cert) = CertificateDer::from_pem_slice(&self.bytes) {
            let (_, cert) = X509Certificate::from_der(&cert).ok()?;
            return Some(cert.public_key().subject_public_key.data.to_vec());
        }
        let info = SubjectPublicKeyInfoDer::from_pem_slice(&self.bytes).ok()?;
        let (_, info) = SubjectPublicKeyInfo::from_der(&info).ok()?;
        Some(info.subject_public_key.data.to_vec())
    }

    fn unfit(&self) -> OptionsError {
        OptionsError::Key(Path::new(&self.path).to_owned())
    }
}

/// A value of DER with its tag and length.
fn der(tag: u8, content: &[&[u8]]) -> Vec<u8> {
    let content = content.concat();
    let length = content.len().to_be_bytes();
    let length: Vec<u8> = length.iter().copied().skip_while(|byte| *byte == 0).collect();
    let prefix = match (content.len(), &length[..]) {
        (0..128, _) => vec![tag, content.len() as u8],
        (_, length) => [&[tag, 0x80 | length.len() as u8], length].concat(),
    };
    [prefix, content].concat()
}

fn signer(method: Method, key: &PrivateKeyDer<'_>, random: &SystemRandom) -> Option<(Signer, Vec<u8>)> {
    match (method, key) {
        (Method::Rsa(encoding, _), key) => {
            let pair = match key {
                PrivateKeyDer::Pkcs1(key) => RsaKeyPair::from_der(key.secret_pkcs1_der()),
                PrivateKeyDer::Pkcs8(key) => RsaKeyPair::from_pkcs8(key.secret_pkcs8_der()),
                _ => return None,
            };
            let pair = pair.ok()?;
            let public = pair.public().as_ref().to_vec();
            Some((Signer::Rsa(Box::new(pair), encoding), public))
        }
        (Method::Ecdsa(algorithm, _, curve), key) => {
            let pkcs8 = match key {
                PrivateKeyDer::Pkcs8(key) => key.secret_pkcs8_der().to_vec(),
                // OpenSSL's own form: ring wants it wrapped.
                PrivateKeyDer::Sec1(key) => {
                    let algorithm = der(0x30, &[EC_KEY, curve]);
                    der(0x30, &[&[0x02, 0x01, 0x00], &algorithm, &der(0x04, &[key.secret_sec1_der()])])
                }
                _ => return None,
            };
            let pair = EcdsaKeyPair::from_pkcs8(algorithm, &pkcs8, random).ok()?;
            let public = pair.public_key().as_ref().to_vec();
            Some((Signer::Ecdsa(Box::new(pair)), public))
        }
        (Method::Ed25519, PrivateKeyDer::Pkcs8(key)) => {
            let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(key.secret_pkcs8_der()).ok()?;
            let public = pair.public_key().as_ref().to_vec();
            Some((Signer::Ed25519(Box::new(pair)), public))
        }
        _ => None,
    }
}

impl Jwt {
    /// Tokens as the options of `--auth-token` say, which are etcd's.
    ///
    /// # Errors
    /// When a method, a time or a key is none.
    pub fn new(options: &BTreeMap<&str, &str>) -> Result<Self, OptionsError> {
        let ttl = match options.get("ttl") {
            Some(ttl) if !ttl.is_empty() => parse_duration(ttl).map_err(|_| OptionsError::Invalid)?,
            _ => TTL_DEFAULT,
        };
        let public = KeyFile::read(options.get("pub-key"))?;
        let private = KeyFile::read(options.get("priv-key"))?;
        let name = *options.get("sign-method").unwrap_or(&"");
        let method = method(name)?;
        for name in options.keys().filter(|name| !["sign-method", "pub-key", "priv-key", "ttl"].contains(name)) {
            tracing::warn!(option = name, "an option of JWT that is not known");
        }
        let random = SystemRandom::new();
        let (signer, verifier) = match method {
            Method::Hmac(algorithm) => {
                let key = hmac::Key::new(algorithm, &private.ok_or(OptionsError::MissingKey)?.bytes);
                (Some(Signer::Hmac(key.clone())), Verifier::Hmac(key))
            }
            _ => {
                let pair = match &private {
                    None => None,
                    Some(file) => {
                        let key = file.private().ok_or_else(|| file.unfit())?;
                        Some(signer(method, &key, &random).ok_or_else(|| file.unfit())?)
                    }
                };
                let given = match &public {
                    None => None,
                    Some(file) => Some(file.public().ok_or_else(|| file.unfit())?),
                };
                let (signer, derived) = pair.unzip();
                if let (Some(given), Some(derived)) = (&given, &derived)
                    && given != derived
                {
                    return Err(OptionsError::KeyMismatch);
                }
                let public = derived.or(given).ok_or(OptionsError::MissingKey)?;
                let algorithm: &'static dyn VerificationAlgorithm = match method {
                    Method::Rsa(_, algorithm) | Method::Ecdsa(_, algorithm, _) => algorithm,
                    Method::Ed25519 | Method::Hmac(_) => &signature::ED25519,
                };
                (signer, Verifier::Public(UnparsedPublicKey::new(algorithm, public)))
            }
        };
        Ok(Self { method: name.to_owned(), ttl, signer, verifier, random })
    }

    fn sign(&self, text: &str) -> Result<Vec<u8>, AuthError> {
        let refused = |_| AuthError::Impossible("a token could not be signed".to_owned());
        Ok(match self.signer.as_ref().ok_or(AuthError::VerifyOnly)? {
            Signer::Hmac(key) => hmac::sign(key, text.as_bytes()).as_ref().to_vec(),
            Signer::Rsa(pair, encoding) => {
                let mut signature = vec![0; pair.public().modulus_len()];
                pair.sign(*encoding, &self.random, text.as_bytes(), &mut signature).map_err(refused)?;
                signature
            }
            Signer::Ecdsa(pair) => pair.sign(&self.random, text.as_bytes()).map_err(refused)?.as_ref().to_vec(),
            Signer::Ed25519(pair) => pair.sign(text.as_bytes()).as_ref().to_vec(),
        })
    }

    /// Gives a user a token.
    ///
    /// # Errors
    /// When there is only a public key here.
    pub fn assign(&self, name: &str, revision: u64) -> Result<String, AuthError> {
        let expires = unix_now().saturating_add(self.ttl).as_secs();
        let encode = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let header = encode(json!({ "alg": self.method, "typ": "JWT" }));
        let claims = encode(json!({ "exp": expires, "revision": revision, "username": name }));
        let text = format!("{header}.{claims}");
        let signature = self.sign(&text)?;
        Ok(format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }

    /// Whose token that is, and as of which revision of users and roles.
    pub fn who(&self, token: &str) -> Option<(String, u64)> {
        let (text, signature) = token.rsplit_once('.')?;
        let (header, claims) = text.split_once('.')?;
        let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
        let decode = |part: &str| serde_json::from_slice::<Value>(&URL_SAFE_NO_PAD.decode(part).ok()?).ok();
        // The method is ours to choose, never the token's.
        if decode(header)?.get("alg")?.as_str()? != self.method {
            return None;
        }
        match &self.verifier {
            Verifier::Hmac(key) => hmac::verify(key, text.as_bytes(), &signature).ok()?,
            Verifier::Public(key) => key.verify(text.as_bytes(), &signature).ok()?,
        }
        let claims = decode(claims)?;
        let now = unix_now().as_secs_f64();
        let time = |name: &str| claims.get(name).map(Value::as_f64);
        if !time("exp").is_none_or(|exp| exp.is_some_and(|exp| now < exp))
            || !time("nbf").is_none_or(|nbf| nbf.is_some_and(|nbf| now >= nbf))
        {
            return None;
        }
        let revision = claims.get("revision")?.as_f64()?;
        Some((claims.get("username")?.as_str()?.to_owned(), revision as u64))
    }
}

fn unix_now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use rcgen::{
        CertificateParams, KeyPair as Generated, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519,
    };

    use super::*;

    fn jwt(options: &[(&str, &str)]) -> Result<Jwt, OptionsError> {
        Jwt::new(&options.iter().copied().collect())
    }

    #[test]
    fn a_token_is_recognized_with_its_key_alone_and_in_its_time() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, bytes: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let secrets = [file("secret", "secret"), file("other", "another")];
        let mut sides =
            vec![("HS256", secrets[0].clone(), String::new()), ("HS512", secrets[1].clone(), String::new())];
        for (name, algorithm) in
            [("ES256", &PKCS_ECDSA_P256_SHA256), ("ES384", &PKCS_ECDSA_P384_SHA384), ("EdDSA", &PKCS_ED25519)]
        {
            let key = Generated::generate_for(algorithm).unwrap();
            let cert = CertificateParams::new(vec![]).unwrap().self_signed(&key).unwrap();
            let private = file(&format!("{name}.key"), &key.serialize_pem());
            sides.push((name, private.clone(), file(&format!("{name}.pub"), &key.public_key_pem())));
            sides.push((name, private, file(&format!("{name}.crt"), &cert.pem())));
        }
        for (method, private, public) in &sides {
            let signs = jwt(&[("sign-method", method), ("priv-key", private), ("pub-key", public)]).unwrap();
            let token = signs.assign("bob", 7).unwrap();
            assert_eq!(signs.who(&token), Some(("bob".to_owned(), 7)), "{method}");
            let mut forged = token.clone().into_bytes();
            let claims = token.find('.').unwrap() + 4;
            forged[claims] = if forged[claims] == b'A' { b'B' } else { b'A' };
            assert_eq!(signs.who(&String::from_utf8(forged).unwrap()), None, "{method}");
            if !public.is_empty() {
                let verifies = jwt(&[("sign-method", method), ("pub-key", public)]).unwrap();
                assert_eq!(verifies.who(&token), Some(("bob".to_owned(), 7)));
                assert_eq!(verifies.assign("bob", 7), Err(AuthError::VerifyOnly));
            }
            let late = jwt(&[("sign-method", method), ("priv-key", private), ("ttl", "0s")]).unwrap();
            assert_eq!(signs.who(&late.assign("bob", 7).unwrap()), None, "it ran out");
        }
        let own = jwt(&[("sign-method", "HS256"), ("priv-key", &secrets[0])]).unwrap();
        let foreign = jwt(&[("sign-method", "HS256"), ("priv-key", &secrets[1])]).unwrap();
        assert_eq!(own.who(&foreign.assign("bob", 7).unwrap()), None, "of another key");
        for wrong in ["", ".", "..", "a.b.c", "e30.e30."] {
            assert_eq!(own.who(wrong), None, "{wrong:?}");
        }
        let (es256, eddsa) = (&sides[2], &sides[6]);
        let text = |options: &[(&str, &str)]| jwt(options).err().map(|error| error.to_string());
        assert_eq!(text(&[("sign-method", "none")]).as_deref(), Some("auth: invalid auth signature method"));
        assert_eq!(text(&[("sign-method", "ES256")]).as_deref(), Some("auth: missing key data"));
        let mismatched = [("sign-method", "ES256"), ("priv-key", &es256.1), ("pub-key", &eddsa.2)];
        assert_eq!(text(&mismatched).as_deref(), Some("auth: public and private keys don't match"));
        assert!(text(&[("sign-method", "EdDSA"), ("priv-key", &es256.1)]).unwrap().ends_with("that method of signing"));
    }
}
