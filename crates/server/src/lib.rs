//! Empty until its first module lands.
