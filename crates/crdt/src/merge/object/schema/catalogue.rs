//! The types of all built-in kinds of Kubernetes, read once from a text that `tools/schema` writes.
//!
//! Its lines are:
//! ```text
//! version v0.36.3                     of the API modules
//! kind apps/v1 Deployment TYPE        the type of a kind
//! type TYPE [atomic|unit]             a struct; `atomic` if it is one value wherever it stands, to server-side apply as well
//! NUMBER NAME FORM [DECLARED]         a field of it: 0 where protobuf has none, - for one whose fields JSON writes in its place
//! together NAME,NAME [earliest|bits]  fields of it that come from one side; see [`Stays`]
//! ```
//! A form is `?` for what may be absent, `[]` for a list, `{}` for a map from strings, and a type: of a struct, or a [`Base`]. What
//! is declared of a field is `atomic`, `set`, or `keys=NAME,NAME:DEFAULT`.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::LazyLock;

const TEXT: &str = include_str!("kubernetes.schema");

static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(|| Catalogue::read(TEXT));

/// A field that tells the elements of a list apart.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Key {
    /// Its name.
    pub name: Cow<'static, str>,
    /// What it is where an element does not say, as JSON; `None` where the element then has no such key.
    pub default: Option<Cow<'static, str>>,
}

impl Key {
    /// One that an element must have.
    pub const fn new(name: &'static str) -> Self {
        Self { name: Cow::Borrowed(name), default: None }
    }

    /// One that has that value, as JSON, where an element does not say.
    pub const fn or(name: &'static str, default: &'static str) -> Self {
        Self { name: Cow::Borrowed(name), default: Some(Cow::Borrowed(default)) }
    }
}

/// Fields of one struct that are only right together.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Together {
    /// Their names, sorted.
    pub fields: Vec<&'static str>,
    /// Whose they are in the end.
    pub stays: Stays,
}

/// From which side fields come that are only right together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Stays {
    /// The one that edited any of them last.
    Last,
    /// The one that began to delete the object first.
    Earliest,
    /// The last, and in it all bits that any side has set.
    Bits,
}

/// What is declared about the parts of a field.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Declared {
    /// Nothing: a map merges field by field, a list is one value.
    Nothing,
    /// It is one value.
    Atomic,
    /// Each element occurs once.
    Set,
    /// Elements are told apart by these.
    Keyed(Vec<Key>),
}

/// A type that is no list or map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Base {
    /// A text.
    String,
    /// `true` or `false`.
    Bool,
    /// An integer.
    Int,
    /// A number with a fraction.
    Float,
    /// Bytes; in JSON as base64.
    Bytes,
    /// Seconds since 1970; in JSON as in RFC 3339.
    Time,
    /// The same with microseconds.
    MicroTime,
    /// A quantity, as a text.
    Quantity,
    /// An integer or a text.
    IntOrString,
    /// A list of texts that is a message of its own.
    Strings,
    /// JSON inside a message, any value; the fields that a manager owns.
    Fields,
    /// An object of any kind, as JSON inside a message.
    Raw,
    /// The same in a custom resource's schema.
    AnyJson,
    /// A schema of a custom resource, or whether there is any.
    SchemaOrBool,
    /// A schema of a custom resource, or several.
    SchemaOrList,
    /// A schema of a custom resource, or names.
    SchemaOrStrings,
    /// A struct.
    Struct(TypeId),
}

/// How many of a base a field holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Many {
    /// One, which is there in any case: where it is not written it is zero or empty.
    One,
    /// One, or none.
    Optional,
    /// A list.
    List,
    /// A map from strings.
    Map,
}

/// What a field holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Form {
    /// How many.
    pub many: Many,
    /// Of what.
    pub base: Base,
}

/// A field of a struct.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Field {
    /// In protobuf; 0 where that has no such field.
    pub number: u32,
    /// In JSON; `None` for a struct whose fields are written in its place.
    pub name: Option<&'static str>,
    /// What it holds.
    pub form: Form,
    /// How its parts merge.
    pub declared: Declared,
}

/// The place of a type in the catalogue.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TypeId(u16);

/// A struct.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Type {
    /// Whether it is one value wherever it stands.
    pub atomic: bool,
    /// Whether it is the type of a kind: it has the metadata of an object.
    pub is_object: bool,
    /// Its fields in the order of their numbers.
    pub fields: Vec<Field>,
    /// Those of its fields that come from one side, and of structs that are written in place of a field.
    pub together: Vec<Together>,
    /// The places of its fields that have a name, sorted by it.
    names: Vec<u16>,
}

/// All kinds and types.
#[derive(Debug, Default)]
pub struct Catalogue {
    /// The version of the API modules that it was written from.
    pub version: &'static str,
    kinds: HashMap<(&'static str, &'static str), TypeId>,
    types: Vec<Type>,
    metadata: Option<TypeId>,
    crd_schema: Option<TypeId>,
}

/// The catalogue of this build.
pub fn catalogue() -> &'static Catalogue {
    &CATALOGUE
}

impl Catalogue {
    /// The type of a built-in kind.
    pub fn kind(&self, api_version: &str, kind: &str) -> Option<TypeId> {
        self.kinds.get(&(api_version, kind)).copied()
    }

    /// All built-in kinds: their API versions and names.
    pub fn kinds(&self) -> impl Iterator<Item = (&'static str, &'static str)> + '_ {
        self.kinds.keys().copied()
    }

    /// The type of the metadata of every object.
    pub fn metadata(&self) -> Option<TypeId> {
        self.metadata
    }

    /// The type of a custom resource's schema.
    pub fn crd_schema(&self) -> Option<TypeId> {
        self.crd_schema
    }

    /// A struct.
    pub fn of(&self, id: TypeId) -> &Type {
        &self.types[usize::from(id.0)]
    }

    /// The field that has that name in JSON, also one of a struct that is written in place of a field.
    pub fn field(&self, id: TypeId, name: &str) -> Option<&Field> {
        let of = self.of(id);
        let field = |at: &u16| &of.fields[usize::from(*at)];
        if let Ok(at) = of.names.binary_search_by_key(&Some(name), |at| field(at).name) {
            return Some(field(&of.names[at]));
        }
        let inline = of.fields.iter().filter(|field| field.name.is_none());
        inline.filter_map(Field::inner).find_map(|inner| self.field(inner, name))
    }

    /// Reads the text, which is part of this program: a test reads all of it.
    fn read(text: &'static str) -> Self {
        let mut catalogue = Self::default();
        let lines = || text.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let names: Vec<&str> = lines().filter(|words| words[0] == "type").map(|words| words[1]).collect();
        let ids: HashMap<&str, TypeId> =
            names.iter().enumerate().map(|(at, name)| (*name, TypeId(at as u16))).collect();
        for words in lines() {
            match words[..] {
                ["#", ..] => {}
                ["version", version] => catalogue.version = version,
                ["kind", api_version, kind, of] => drop(catalogue.kinds.insert((api_version, kind), ids[of])),
                ["type", _, ref declared @ ..] => {
                    let atomic = matches!(declared, ["atomic" | "unit"]);
                    catalogue.types.push(Type {
                        atomic,
                        is_object: false,
                        fields: vec![],
                        together: vec![],
                        names: vec![],
                    });
                }
                ["together", fields, ref how @ ..] => {
                    let stays = match how {
                        ["earliest"] => Stays::Earliest,
                        ["bits"] => Stays::Bits,
                        _ => Stays::Last,
                    };
                    let together = Together { fields: fields.split(',').collect(), stays };
                    catalogue.types.last_mut().into_iter().for_each(|last| last.together.push(together.clone()));
                }
                [number, name, form, ref declared @ ..] => {
                    let field = Field {
                        number: number.parse().unwrap_or_default(),
                        name: Some(name).filter(|name| *name != "-"),
                        form: form_of(form, &ids),
                        declared: declared.first().map_or(Declared::Nothing, |declared| declared_of(declared)),
                    };
                    catalogue.types.last_mut().into_iter().for_each(|last| last.fields.push(field.clone()));
                }
                _ => unreachable!("a line of the catalogue: {words:?}"),
            }
        }
        for of in &mut catalogue.types {
            let mut named: Vec<u16> =
                (0..of.fields.len() as u16).filter(|at| of.fields[usize::from(*at)].name.is_some()).collect();
            named.sort_by_key(|at| of.fields[usize::from(*at)].name);
            of.names = named;
        }
        for at in 0..catalogue.types.len() {
            let inline = catalogue.types[at].fields.iter().filter(|field| field.name.is_none());
            let inner: Vec<Together> =
                inline.filter_map(Field::inner).flat_map(|id| catalogue.of(id).together.clone()).collect();
            catalogue.types[at].together.extend(inner);
        }
        catalogue.metadata = ids.get("meta/v1.ObjectMeta").copied();
        for at in 0..catalogue.types.len() {
            let metadata = catalogue.field(TypeId(at as u16), "metadata").and_then(Field::inner);
            catalogue.types[at].is_object = metadata.is_some() && metadata == catalogue.metadata;
        }
        catalogue.crd_schema = ids.get("apiextensions/v1.JSONSchemaProps").copied();
        catalogue
    }
}

impl Field {
    /// The type of the struct that it holds one of.
    fn inner(&self) -> Option<TypeId> {
        match self.form.base {
            Base::Struct(id) => Some(id),
            _ => None,
        }
    }
}

fn form_of(text: &str, ids: &HashMap<&str, TypeId>) -> Form {
    let (many, base) = match text {
        _ if text.starts_with('?') => (Many::Optional, &text[1..]),
        _ if text.starts_with("[]") => (Many::List, &text[2..]),
        _ if text.starts_with("{}") => (Many::Map, &text[2..]),
        _ => (Many::One, text),
    };
    let base = match base {
        "string" => Base::String,
        "bool" => Base::Bool,
        "int32" | "int64" => Base::Int,
        "float64" => Base::Float,
        "bytes" => Base::Bytes,
        "time" => Base::Time,
        "microtime" => Base::MicroTime,
        "quantity" => Base::Quantity,
        "int-or-string" => Base::IntOrString,
        "strings" => Base::Strings,
        "fields" => Base::Fields,
        "raw" => Base::Raw,
        "json" => Base::AnyJson,
        "schema-or-bool" => Base::SchemaOrBool,
        "schema-or-list" => Base::SchemaOrList,
        "schema-or-strings" => Base::SchemaOrStrings,
        name => Base::Struct(ids[name]),
    };
    Form { many, base }
}

fn declared_of(text: &'static str) -> Declared {
    // What a built-in kind leaves out is zero or empty.
    let key = |key: &'static str| {
        let (name, default) = key.split_once(':').unwrap_or((key, ""));
        Key { name: name.into(), default: Some(format!("{default:?}").into()) }
    };
    match text {
        "atomic" => Declared::Atomic,
        "set" => Declared::Set,
        keys => Declared::Keyed(keys.trim_start_matches("keys=").split(',').map(key).collect()),
    }
}
