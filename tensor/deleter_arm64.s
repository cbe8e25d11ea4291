#include "textflag.h"

// void deleter(managed): C's calling convention, the argument in R0. It uses registers that the caller has saved.
TEXT ·deleter(SB), NOSPLIT|NOFRAME, $0-0
	MOVD $·returned(SB), R1
again:
	MOVD (R1), R2
	MOVD R2, 80(R0) // link
	LDXR (R1), R3
	CMP  R2, R3
	BNE  again
	STLXR R0, (R1), R3
	CBNZ R3, again
	CBNZ R2, done // whoever put the first one there has written
	MOVD $64, R8 // write
	MOVW ·returnedFD(SB), R0
	MOVD $1, R2
	SVC
done:
	RET

// func deleterAddress() unsafe.Pointer
TEXT ·deleterAddress(SB), NOSPLIT, $0-8
	MOVD $·deleter(SB), R0
	MOVD R0, ret+0(FP)
	RET

// func callDeleter(managed unsafe.Pointer)
TEXT ·callDeleter(SB), NOSPLIT, $8-8
	MOVD managed+0(FP), R0
	CALL ·deleter(SB)
	RET
