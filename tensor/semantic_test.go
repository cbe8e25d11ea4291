package tensor

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Behaviour 49 to 57 and the semantics table.
func TestCheckSemantic(t *testing.T) {
	cases := []struct {
		name     string
		kind     Kind
		dtype    string
		semantic Semantic
		mentions []string // of the refusal; nil when accepted
	}{
		{"49 point on float32x3", Fixed, "float32x3", SemanticPoint, nil},
		{"49 color on the same storage", Fixed, "float32x3", SemanticColor, nil},
		{"49 matrix on float64x16", Fixed, "float64x16", SemanticMatrix, nil},
		{"49 quaternion on half floats", Array, "float16x4", SemanticQuaternion, nil},
		{"49 normal on bfloat16", Array, "bfloat16x3", SemanticNormal, nil},
		{"49 vector of bool is no number", Fixed, "boolx3", SemanticVector, []string{"vector", "boolx3", "numeric"}},
		{"50 token ids", Fixed, "uint64", SemanticTokenID, nil},
		{"50 token ids in an array", Array, "uint64", SemanticTokenID, nil},
		{"51 token id of uint32", Fixed, "uint32", SemanticTokenID, []string{"token_id", "uint32", "uint64"}},
		{"51 token id with 2 lanes", Fixed, "uint64x2", SemanticTokenID, []string{"uint64x2"}},
		{"51 token id of float64", Array, "float64", SemanticTokenID, []string{"float64"}},
		{"51 token id of int64", Array, "int64", SemanticTokenID, []string{"int64"}},
		{"51 relationship as fixed kind", Fixed, "uint64", SemanticRelationshipPathID, []string{"kind fixed", "kind array"}},
		{"relationship as array", Array, "uint64", SemanticRelationshipPathID, nil},
		{"52 connection pairs", Array, "uint64x2", SemanticConnectionPathID, nil},
		{"52 connection as fixed kind", Fixed, "uint64x2", SemanticConnectionPathID, []string{"kind array"}},
		{"52 connection of one lane", Array, "uint64", SemanticConnectionPathID, []string{"uint64x2"}},
		{"52 one asset", Fixed, "uint64x2", SemanticAssetPathID, nil},
		{"52 asset list", Array, "uint64x2", SemanticAssetPathID, nil},
		{"52 asset of three lanes", Fixed, "uint64x3", SemanticAssetPathID, []string{"uint64x3", "uint64x2"}},
		{"53 the pair without semantic", Fixed, "uint64x2", SemanticNone, nil},
		{"none takes bool", Fixed, "bool", SemanticNone, nil},
		{"none takes float8", Fixed, "float8_e5m2x7", SemanticNone, nil},
		{"55 path expression fixed", Fixed, "uint64", SemanticPathExpression, nil},
		{"55 path expression array", Array, "uint64", SemanticPathExpression, nil},
		{"55 path expression as text", Array, "uint8", SemanticPathExpression, []string{"uint8", "uint64"}},
		{"56 matrix of 9 floats", Fixed, "float32x9", SemanticMatrix, nil},
		{"56 matrix of 16 floats", Fixed, "float32x16", SemanticMatrix, nil},
		{"56 array of matrices", Array, "float64x16", SemanticMatrix, nil},
		{"57 time code", Fixed, "float64", SemanticTimeCode, nil},
		{"57 frame", Fixed, "float64x16", SemanticFrame, nil},
		{"string of bytes", Array, "uint8", SemanticString, nil},
		{"string as fixed kind", Fixed, "uint8", SemanticString, []string{"kind array"}},
		{"string of int8", Array, "int8", SemanticString, []string{"int8"}},
		{"unknown semantic", Fixed, "uint8", 16, []string{"semantic is 16", "15"}},
		{"unknown semantic, largest", Fixed, "uint8", ^Semantic(0), []string{"4294967295"}},
		{"unknown kind", 0, "uint8", SemanticNone, []string{"kind is 0"}},
		{"unknown kind 3", 3, "uint8", SemanticNone, []string{"kind is 3"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			err := CheckSemantic(c.kind, dtype(t, c.dtype), c.semantic)
			if c.mentions == nil {
				require.NoError(t, err)
				return
			}
			requireRefused(t, err, InvalidArgument, c.mentions...)
		})
	}
}

// The numbers travel in shared memory: they never change.
func TestSemanticNumbersAreStable(t *testing.T) {
	names := []string{"none", "point", "vector", "normal", "color", "quaternion", "matrix", "frame", "texture_coordinate",
		"time_code", "token_id", "relationship_path_id", "connection_path_id", "asset_path_id", "path_expression", "string"}
	require.Len(t, semantics, len(names))
	for i, name := range names {
		require.Equal(t, name, Semantic(i).String())
		s, err := ParseSemantic(name)
		require.NoError(t, err)
		require.Equal(t, Semantic(i), s)
	}
	_, err := ParseSemantic("colour")
	requireRefused(t, err, InvalidArgument, "colour")
	require.Equal(t, "semantic(16)", Semantic(16).String())
}
