package tensor

import "fmt"

// Kind says how an attribute stores its rows. It is declared, never inferred.
type Kind uint32

const (
	Fixed Kind = 1 // every row has the same shape
	Array Kind = 2 // every row is a list of elements of its own length
)

func (k Kind) String() string {
	switch k {
	case Fixed:
		return "fixed"
	case Array:
		return "array"
	}
	return fmt.Sprintf("kind(%d)", uint32(k))
}

// Semantic says what the numbers of an attribute stand for. The values are
// stable: they travel in shared memory.
type Semantic uint32

const (
	SemanticNone               Semantic = 0
	SemanticPoint              Semantic = 1
	SemanticVector             Semantic = 2
	SemanticNormal             Semantic = 3
	SemanticColor              Semantic = 4
	SemanticQuaternion         Semantic = 5
	SemanticMatrix             Semantic = 6
	SemanticFrame              Semantic = 7
	SemanticTextureCoordinate  Semantic = 8
	SemanticTimeCode           Semantic = 9
	SemanticTokenID            Semantic = 10
	SemanticRelationshipPathID Semantic = 11
	SemanticConnectionPathID   Semantic = 12
	SemanticAssetPathID        Semantic = 13
	SemanticPathExpression     Semantic = 14
	SemanticString             Semantic = 15
)

// semantics holds one line per semantic: its name and the storage it needs.
// A zero dtype means any numeric type; only none takes bool as well.
var semantics = [...]struct {
	name  string
	dtype DType
	array bool // array kind only
}{
	SemanticNone:               {name: "none"},
	SemanticPoint:              {name: "point"},
	SemanticVector:             {name: "vector"},
	SemanticNormal:             {name: "normal"},
	SemanticColor:              {name: "color"},
	SemanticQuaternion:         {name: "quaternion"},
	SemanticMatrix:             {name: "matrix"},
	SemanticFrame:              {name: "frame"},
	SemanticTextureCoordinate:  {name: "texture_coordinate"},
	SemanticTimeCode:           {name: "time_code"},
	SemanticTokenID:            {name: "token_id", dtype: Uint64},
	SemanticRelationshipPathID: {name: "relationship_path_id", dtype: Uint64, array: true},
	SemanticConnectionPathID:   {name: "connection_path_id", dtype: DType{Code: CodeUint, Bits: 64, Lanes: 2}, array: true},
	SemanticAssetPathID:        {name: "asset_path_id", dtype: DType{Code: CodeUint, Bits: 64, Lanes: 2}},
	SemanticPathExpression:     {name: "path_expression", dtype: Uint64},
	SemanticString:             {name: "string", dtype: Uint8, array: true},
}

func (s Semantic) String() string {
	if int(s) < len(semantics) {
		return semantics[s].name
	}
	return fmt.Sprintf("semantic(%d)", uint32(s))
}

// ParseSemantic reads the name that String gives.
func ParseSemantic(name string) (Semantic, error) {
	for i := range semantics {
		if semantics[i].name == name {
			return Semantic(i), nil
		}
	}
	return 0, invalid("semantic %.64q is not known: expected a name as \"point\", \"matrix\" or \"token_id\"", name)
}

// CheckSemantic reports why rows of this kind and element type cannot carry the
// semantic, or nil. Geometric semantics leave bits and lanes to the caller;
// semantics of ids fix them, because readers decode by them.
func CheckSemantic(kind Kind, dtype DType, semantic Semantic) error {
	if kind != Fixed && kind != Array {
		return invalid("kind is %d: expected 1 (fixed) or 2 (array)", uint32(kind))
	}
	if err := dtype.Validate(); err != nil {
		return err
	}
	if int(semantic) >= len(semantics) {
		return invalid("semantic is %d: expected 0 to %d", uint32(semantic), len(semantics)-1)
	}
	if semantic == SemanticNone {
		return nil
	}
	need := &semantics[semantic]
	if need.dtype.Lanes == 0 {
		if !dtype.Numeric() {
			return invalid("semantic %s with element type %s: expected a numeric type", semantic, dtype)
		}
		return nil
	}
	if dtype != need.dtype {
		return invalid("semantic %s with element type %s: expected %s", semantic, dtype, need.dtype)
	}
	if need.array && kind != Array {
		return invalid("semantic %s with kind %s: expected kind array", semantic, kind)
	}
	return nil
}
