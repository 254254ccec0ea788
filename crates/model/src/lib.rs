//! Ferry: model.
